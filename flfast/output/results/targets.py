"""What runs have spent when they reach an accuracy or a loss. Torch-free."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from flfast.output.results.criterion import Criterion
from flfast.output.results.history import Row, clock, series, total


class Spent(NamedTuple):
    """What a run has spent when it reaches a value; NaN if it does not, or did not measure it.

    Attributes:
        rounds: of training.
        seconds: of training and evaluation.
        bytes: that all clients sent and received.
        virtual_seconds: seconds of virtual time.
    """

    rounds: float
    seconds: float
    bytes: float
    virtual_seconds: float


def spent_until(history: Sequence[Row], criterion: Criterion, target: float) -> Spent:
    """What a run spends until the first evaluation that reaches `target`.

    Rounds that were not evaluated count.
    """
    points = zip(*series(history, criterion.column(history)), strict=True)
    reached = (round_idx for round_idx, value in points if criterion.reached(value, target))
    first = next(reached, None)
    if first is None:
        return Spent(math.nan, math.nan, math.nan, math.nan)
    rows = [row for row in history if int(row["round"]) <= first]
    return Spent(
        rounds=first,
        seconds=total(rows, "time/train_s", "time/eval_s"),
        bytes=total(rows, "comm/up_bytes", "comm/down_bytes"),
        virtual_seconds=clock(history).get(first, math.nan),
    )
