"""A line for runs that evaluate for longer than they train. Torch-free."""

from collections.abc import Mapping, Sequence
from typing import Any

_WORTH_S = 30.0
"""Seconds of evaluation from which the line is worth reading."""

_FIRST_ROUNDS = 100
"""Rounds in which it may appear. It reads all rows, which must not slow down long runs."""


def evaluation_hint(rows: Sequence[Mapping[str, Any]]) -> str:
    """The line after the round in which evaluation has become longer; empty in all others.

    >>> rows = [{}, {"time/train_s": 2.0, "time/eval_s": 33.0}]
    >>> evaluation_hint(rows)[:62], evaluation_hint([*rows, rows[1]])
    ('evaluation has taken 33 s, training 2 s; eval_every=10 evaluat', '')
    """
    if len(rows) > _FIRST_ROUNDS:
        return ""
    now, before = _seconds(rows[1:]), _seconds(rows[1:-1])
    if not _is_long(*now) or _is_long(*before):
        return ""
    return (
        f"evaluation has taken {now[1]:.3g} s, training {now[0]:.3g} s; eval_every=10 evaluates "
        f"less often, eval_examples=0.1 on fewer examples"
    )


def _is_long(training: float, evaluation: float) -> bool:
    return evaluation >= _WORTH_S and evaluation > training


def _seconds(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Seconds of training and of evaluation."""
    training, evaluation = (
        sum(float(row.get(column) or 0.0) for row in rows)
        for column in ("time/train_s", "time/eval_s")
    )
    return training, evaluation
