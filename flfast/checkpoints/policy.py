"""When a checkpoint is due. Torch-free."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

COST_SHARE = 0.03
"""Of a run's time, that checkpoints may take with `every=auto`."""


class Policy(NamedTuple):
    """What the config says of checkpoints.

    Attributes:
        every: rounds between two; 0 is none at all; `auto`: as often as costs `COST_SHARE`.
        keep_last: so many of the newest ones stay, >= 1.
        keep_best: column whose best round stays, too, or None.
    """

    every: int | Literal["auto"]
    keep_last: int
    keep_best: str | None

    def due(self, history: Sequence[Mapping[str, Any]], *, rounds: int, affordable: bool) -> bool:
        """Whether the round that has ended is to leave a checkpoint.

        Args:
            history: rows so far.
            rounds: of the run; the last one always leaves one.
            affordable: whether another one is within `COST_SHARE`.
        """
        round_idx = history[-1]["round"]
        if self.every == 0 or round_idx == 0:
            return False
        if round_idx in (rounds, best_round(history, self.keep_best)):
            return True
        return affordable if self.every == "auto" else round_idx % self.every == 0


def best_round(history: Sequence[Mapping[str, Any]], metric: str | None) -> int | None:
    """The first round in which a column was at its best; None where it was never measured.

    A `loss` is best where it is lowest, anything else where it is highest; row 0 does not count.

    >>> rows = [{"round": r, "val/loss": v} for r, v in enumerate([0.1, 3.0, 2.0, 2.5])]
    >>> best_round(rows, "val/loss")
    2
    """
    if metric is None:
        return None
    sign = 1 if metric.endswith("loss") else -1
    known = [
        (sign * float(row[metric]), int(row["round"]))
        for row in history[1:]
        if metric in row and math.isfinite(float(row[metric]))
    ]
    return min(known)[1] if known else None
