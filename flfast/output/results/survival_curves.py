"""Kaplan-Meier curves of groups of predicted risk, as rows of a file and as charts. Torch-free.

Kaplan, Meier: Nonparametric Estimation from Incomplete Observations. Journal of the American
Statistical Association 53, 1958.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flfast.output.results.charts import Line, LineChart
from flfast.output.results.table import read_curves

COLUMNS = ("set", "risk", "time", "surviving")
GROUPS = ("low risk", "middle risk", "high risk")
_VIEWS = dict(zip(GROUPS, ("personal", "finetuned", "local"), strict=True))  # of their colours
_NOTE = "Thirds of the examples by predicted risk; good predictions hold the curves apart."


def kaplan_meier(time: np.ndarray, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times from 0 on, ascending, and the estimated share that survives each of them.

    The times of n examples, and whether the event was seen then, are [n].
    """
    times, place = np.unique(time, return_inverse=True)
    at_risk = len(time) - np.searchsorted(np.sort(time), times)
    surviving = np.cumprod(1 - np.bincount(place, weights=event) / at_risk)
    return np.append(0.0, times), np.append(1.0, surviving)


def curve_rows(
    name: str, risk: np.ndarray, time: np.ndarray, event: np.ndarray
) -> Iterator[tuple[str, str, float, float]]:
    """Rows of `COLUMNS` for an evaluation set: the curves of its thirds by predicted risk."""
    for group, members in zip(GROUPS, np.array_split(risk.argsort(kind="stable"), 3), strict=True):
        if len(members):
            points = zip(*kaplan_meier(time[members], event[members]), strict=True)
            yield from ((name, group, float(t), float(share)) for t, share in points)


def curve_charts(path: Path) -> list[LineChart]:
    """A chart for each set of a file with such rows.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it has other columns or cells.
    """
    charts: dict[str, list[Line]] = {}
    for (name, group), (time, surviving) in read_curves(path, COLUMNS[:2], COLUMNS[2:]):
        line = Line(group, time, surviving, view=_VIEWS.get(group, ""))
        charts.setdefault(name, []).append(line)
    return [
        LineChart(f"Kaplan-Meier, {name}", lines, "time", "surviving share", _NOTE, steps=True)
        for name, lines in charts.items()
    ]
