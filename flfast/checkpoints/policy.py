"""Decides when a checkpoint is due. Torch-free."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from flfast.output.results.history import best_row

COST_SHARE = 0.03
"""Share of a run's time that checkpoints may take with `every=auto`."""


class Policy(NamedTuple):
    """The config's `checkpoint` settings.

    Attributes:
        every: rounds between checkpoints; 0 writes none; `auto` as often as `COST_SHARE` allows.
        keep_last: number of newest checkpoints to keep, >= 1.
        keep_best: column whose best round's checkpoint is kept, too; None for none.
    """

    every: int | Literal["auto"]
    keep_last: int
    keep_best: str | None

    def due(self, history: Sequence[Mapping[str, Any]], *, rounds: int, affordable: bool) -> bool:
        """Whether to write a checkpoint after the round that has just ended.

        The last of the `rounds` always gets one; others with `every=auto` do if it is
        `affordable`.
        """
        round_idx = history[-1]["round"]
        if self.every == 0 or round_idx == 0:
            return False
        if round_idx in (rounds, best_round(history, self.keep_best)):
            return True
        return affordable if self.every == "auto" else round_idx % self.every == 0


def best_round(history: Sequence[Mapping[str, Any]], metric: str | None) -> int | None:
    """The first round with the column's best value; None if the column was never measured.

    A loss is best at its minimum, an accuracy at its maximum; see `falls`. Row 0, the untrained
    model, does not count.

    >>> rows = [{"round": r, "val/loss": v} for r, v in enumerate([0.1, 3.0, 2.0, 2.5])]
    >>> best_round(rows, "val/loss")
    2
    """
    if metric is None:
        return None
    best = best_row(history[1:], metric)
    return None if best is None else int(best["round"])
