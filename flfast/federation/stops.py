"""Rules that end a run before its last round. Config group `stop`."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flfast.state.options import Count, NonNegative
from flfast.tasks.names import falls

Stop = Callable[[Sequence[Mapping[str, Any]]], str | None]
"""Rows so far -> the reason to end the run, or None. A function of the rows alone, so that a
resumed run ends where one without interruption does."""


def never() -> Stop:
    """A rule that never ends a run."""
    return lambda rows: None


def target(*, metric: str, value: float) -> Stop:
    """A rule that ends a run at the first evaluation that reaches a value."""

    def stop(rows: Sequence[Mapping[str, Any]]) -> str | None:
        found = evaluated(rows, metric)
        if not found:
            return None
        reached = found[-1] <= value if falls(metric) else found[-1] >= value
        return f"{metric}={found[-1]:.4g} has reached {value:.4g}" if reached else None

    return stop


def plateau(*, metric: str, patience: Count, min_change: NonNegative) -> Stop:
    """A rule that ends a run after `patience` evaluations in a row without a new best."""

    def stop(rows: Sequence[Mapping[str, Any]]) -> str | None:
        sign = 1 if falls(metric) else -1
        best, waited = math.inf, 0
        for value in evaluated(rows, metric):
            improved = sign * value < best - min_change
            best, waited = (sign * value, 0) if improved else (best, waited + 1)
        if waited < patience:
            return None
        return f"{metric} has not improved on {sign * best:.4g} in {waited} evaluations"

    return stop


def evaluated(rows: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    """Values of a metric in rounds that were evaluated, without those before training."""
    return [float(row[metric]) for row in rows[1:] if "time/eval_s" in row and metric in row]
