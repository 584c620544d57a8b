"""The interface of rules that end a run early, and the values that they read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Stop = Callable[[Sequence[Mapping[str, Any]]], str | None]
"""Rows so far -> the reason to end the run, or None. A function of the rows alone, so that a
resumed run ends where one without interruption does."""


def evaluated(rows: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    """Values of a metric in rounds that were evaluated, without those before training."""
    return [float(row[metric]) for row in rows[1:] if "time/eval_s" in row and metric in row]


def never() -> Stop:
    """A rule that never ends a run."""
    return lambda rows: None
