"""Reads values from rows of `metrics.csv`, in memory or from disk. Torch-free."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

from flfast.output.results.columns import VIEWS
from flfast.tasks.names import ALL_METRICS, SCORES, falls, headline, in_order

Row = Mapping[str, Any]


def number(row: Row, column: str) -> float:
    """The cell as a number; NaN if it is missing or empty.

    >>> number({"global/loss": "0.5"}, "global/loss"), number({}, "global/loss")
    (0.5, nan)
    """
    cell = row.get(column)
    return math.nan if cell is None or cell == "" else float(cell)


def parsed(cell: Any) -> int | float | str | None:
    """A cell as the number that it holds, or as text; None if it is missing or empty.

    >>> parsed("5"), parsed("1e-3"), parsed("gpu:0"), parsed("")
    (5, 0.001, 'gpu:0', None)
    """
    if cell is None or cell == "":
        return None
    text = str(cell)
    try:
        return float(text) if {".", "e", "n"} & set(text.lower()) else int(text)
    except ValueError:
        return text


def series(history: Sequence[Row], column: str) -> tuple[list[int], list[float]]:
    """Rounds in which the column is finite, and its values there."""
    points = [(int(row["round"]), number(row, column)) for row in history]
    finite = [(round_idx, value) for round_idx, value in points if math.isfinite(value)]
    return [round_idx for round_idx, _ in finite], [value for _, value in finite]


def clock(history: Sequence[Row]) -> dict[int, float]:
    """Virtual seconds at the end of each round; empty if the run measured none.

    >>> clock([{"round": 0}, {"round": 1, "clock/seconds": "2.5"}])
    {0: 0.0, 1: 2.5}
    """
    found = dict(zip(*series(history, "clock/seconds"), strict=True))
    return {0: 0.0, **found} if found else {}


def uploaded(history: Sequence[Row]) -> dict[int, float]:
    """Bytes that all clients have uploaded until the end of each round, from the first upload on.

    >>> uploaded([{"round": r, "comm/up_bytes": 5 * r} for r in range(3)])
    {1: 5.0, 2: 15.0}
    """
    rounds, sizes = series(history, "comm/up_bytes")
    return {place: at for place, at in zip(rounds, accumulate(sizes), strict=True) if at}


def last_value(history: Sequence[Row], column: str) -> float:
    """The column's last finite value; NaN if there is none."""
    return next(reversed(series(history, column)[1]), math.nan)


def validation_column(history: Sequence[Row]) -> str:
    """The column that `optimized_metric=auto` stands for."""
    views = ("personal_val", "val")
    columns = [f"{view}/{headline(metric_names([history], views))}" for view in views]
    measured = (c for c in (*columns, "train/loss") if is_measured([history], c))
    return next(measured, "val/accuracy")


def is_measured(histories: Iterable[Sequence[Row]], *columns: str) -> bool:
    """Whether any of the columns has a finite value in any round of any of the runs."""
    rows = [row for history in histories for row in reversed(history)]
    return any(math.isfinite(number(row, column)) for column in columns for row in rows)


def members(columns: Iterable[str]) -> list[str]:
    """Names of a family's models, by the columns of their costs."""
    found = (re.fullmatch("(?:model/parameters|time/train_s)_(.+)", column) for column in columns)
    return [*dict.fromkeys(match[1] for match in found if match)]


def metric_names(histories: Sequence[Sequence[Row]], views: Iterable[str] = VIEWS) -> list[str]:
    """Names of the metrics that any of the runs has measured; see `in_order`.

    They are read from the rows: users' modules have names of their own. Spreads over clients and
    means by model are no metrics; the set `global` has none.
    """
    columns = dict.fromkeys(chain.from_iterable(chain.from_iterable(histories)))
    names = [name for view, _, name in (c.partition("/") for c in columns) if view in views]
    ends = ("std", "worst10", *members(columns))
    derived = {"samples_per_s", *(f"{name}_{end}" for name in names for end in ends)}
    own = [n for n in names if n not in derived or f"global/{n}" in columns]
    return [n for n in in_order(own) if is_measured(histories, *(f"{v}/{n}" for v in views))]


def score_names(histories: Sequence[Sequence[Row]], views: Iterable[str] = VIEWS) -> list[str]:
    """Names of the metrics to show, without the loss: scores, and all of a user's module.

    A module has the spread over clients of all that it logs, a task of flfast of its headline.
    """
    found = [name for name in metric_names(histories, views) if name != "loss"]
    own = {name for name in found if is_measured(histories, *(f"{v}/{name}_std" for v in VIEWS))}
    return [name for name in found if name in {*SCORES, *own} or name not in ALL_METRICS]


def best_row(history: Sequence[Row], column: str) -> Row | None:
    """The first row with the column's best value, see `falls`; None if it was never measured."""
    sign = 1 if falls(column) else -1
    measured = [row for row in history if math.isfinite(number(row, column))]
    return min(measured, key=lambda row: sign * number(row, column), default=None)


def total(history: Sequence[Row], *columns: str) -> float:
    """Sum of the columns' finite values over all rounds."""
    return math.fsum(value for column in columns for value in series(history, column)[1])
