"""Numbers that are read off a run's `metrics.csv`. Torch-free."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

from flfast.output.results.history import Row, best_row, number, series

MeasureName = Literal["last", "best", "mean", "deviation", "change", "decay", "rounds"]
"""What is read of a column.

    last        its last value
    best        its best value: the lowest loss, the highest accuracy
    mean        mean of the last `window` values
    deviation   standard deviation of the last `window` values: how unsteady the run is
    change      the last value minus the first one
    decay       the last value divided by the first one
    rounds      rounds until the best value so far crosses `target`; infinite if it does not
"""


def crossing(history: Sequence[Row], column: str, target: float) -> float:
    """Rounds until the best value so far crosses the target, with a fraction; NaN if it does not.

    This is how McMahan et al. 2017 count: linear between rounds.

    >>> rows = [{"round": r, "x": v} for r, v in enumerate([0.1, 0.5, 0.4, 0.9])]
    >>> crossing(rows, "x", 0.7)
    2.5
    """
    best, last = -math.inf, 0
    for round_idx, value in zip(*series(history, column), strict=True):
        if value >= target:
            if not math.isfinite(best):
                return float(round_idx)
            return last + (round_idx - last) * (target - best) / (value - best)
        best, last = max(best, value), round_idx
    return math.nan


def measured(
    history: Sequence[Row], column: str, measure: MeasureName, *, window: int, target: float
) -> float:
    """The measure of a column; NaN if the run has no finite value there.

    >>> rows = [{"round": r, "x": v} for r, v in enumerate([8.0, 1.0, 2.0])]
    >>> [measured(rows, "x", m, window=2, target=9) for m in ("mean", "change", "decay", "rounds")]
    [1.5, -6.0, 0.25, inf]
    """
    values = series(history, column)[1]
    if not values:
        return math.nan
    found: dict[MeasureName, Callable[[], float]] = {
        "last": lambda: values[-1],
        "best": lambda: number(best_row(history, column) or {}, column),
        "mean": lambda: statistics.fmean(values[-window:]),
        "deviation": lambda: statistics.pstdev(values[-window:]),
        "change": lambda: values[-1] - values[0],
        "decay": lambda: values[-1] / values[0] if values[0] else math.nan,
        "rounds": lambda: _finite(crossing(history, column, target)),
    }
    return found[measure]()


def _finite(rounds: float) -> float:
    return math.inf if math.isnan(rounds) else rounds
