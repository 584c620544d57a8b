"""Lines of charts: what runs measured, over rounds, virtual time or uploaded bytes. Torch-free."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from flfast.output.results.charts import Line, LineChart
from flfast.output.results.formats import in_percent, unit
from flfast.output.results.history import Row, clock, score_names, series, uploaded
from flfast.output.results.statistics import Interval, mean_interval
from flfast.tasks.names import ALL_METRICS, falls

T = TypeVar("T")

_MOST_PLACES = 100
LABELS = {
    "train": "local training",
    "global": "server model, central test",
    "local": "server model, clients' test",
    "personal": "personal models, clients' test",
    "finetuned": "fine-tuned models, clients' test",
    "new": "server model, new clients' test",
    "new_finetuned": "fine-tuned models, new clients' test",
    "val": "server model, validation",
    "personal_val": "personal models, validation",
}
"""View -> what a reader calls its line."""

_TITLES = {
    "accuracy": "Accuracy",
    "mae": "Mean absolute error",
    "concordance": "Concordance",
    "mase": "Mean absolute scaled error",
    "dice": "Dice",
    "loss": "Loss",
}
"""Metric -> title of its chart; a run has those that its task measures, and a user's own."""

WORST = "worst 10 % of clients"


class Over(NamedTuple):
    """What lies on the x axis.

    Attributes:
        name: name of the axis, with its unit.
        places: rows of a run -> place at the end of each round.
        title: what it adds to a chart's title.
        log: whether the axis is logarithmic.
    """

    name: str
    places: Callable[[Sequence[Row]], dict[int, float]]
    title: str = ""
    log: bool = False


ROUNDS = Over("round", lambda history: {int(row["round"]): int(row["round"]) for row in history})
BYTES = Over(
    "uploaded by all clients [MB]",
    lambda history: {r: size / 1e6 for r, size in uploaded(history).items()},
    " over uploaded bytes",
    log=True,
)


def rounds_and_time(histories: Iterable[Sequence[Row]]) -> list[Over]:
    """Rounds, and virtual time if any of the runs has a clock."""
    latest = max((s for history in histories for s in clock(history).values()), default=math.nan)
    if math.isnan(latest):
        return [ROUNDS]
    size, name = unit(latest)

    def places(history: Sequence[Row]) -> dict[int, float]:
        return {r: seconds / size for r, seconds in clock(history).items()}

    return [ROUNDS, Over(f"virtual time [{name}]", places, " over virtual time")]


Curve = tuple[Sequence[float], Sequence[float]]
"""Places and values of one run."""


def curve(history: Sequence[Row], column: str, over: Over = ROUNDS) -> Curve:
    """A column in the rounds in which the run has measured it and has a place."""
    places = over.places(history)
    points = zip(*series(history, column), strict=True)
    known = [(places[r], value) for r, value in points if r in places]
    return [x for x, _ in known], [y for _, y in known]


def mean_line(name: str, column: str, curves: Sequence[Curve], over: Over = ROUNDS) -> Line:
    """Mean over seeds with its interval.

    There is a curve for each seed; empty ones are left out. In each round the mean is over the
    runs that have measured the column then. Over anything else, runs are interpolated, and the
    line is as long as all of them go on.
    """
    curves = [points for points in curves if points[0]]
    if not curves:
        return Line(name, (), ())
    values: dict[float, list[float]] = {}
    if over is ROUNDS or len(curves) < 2:
        for points in curves:
            for x, y in zip(*points, strict=True):
                values.setdefault(x, []).append(y)
    else:
        first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
        common = sorted({place for x, _ in curves for place in x if first <= place <= last})
        for place in thinned(common, _MOST_PLACES):
            values[place] = [float(np.interp(place, *points)) for points in curves]
    places = sorted(values)
    means, lows, highs = zip(*(over_seeds(column, values[x])[:3] for x in places), strict=True)
    return Line(name, places, means, lows, highs)


def over_seeds(column: str, values: Iterable[float]) -> Interval:
    """The interval of a column's mean over seeds; that of a score is cut to [0, 1]."""
    values = [*values]
    is_score = in_percent(column, values) or column.endswith("concordance")
    bounds = (0.0, 1.0) if is_score and "_std" not in column else None
    return mean_interval(values, bounds)


def run_charts(histories: Sequence[Sequence[Row]]) -> list[LineChart]:
    """Accuracy, mean absolute error or concordance, and loss: over rounds, and over virtual time.

    The runs differ in the seed alone. The line of a single run that is a mean over clients has a
    band of their deviation.
    """
    charts = []
    for over in rounds_and_time(histories):
        for metric in dict.fromkeys((*_TITLES, *score_names(histories, LABELS))):
            title = _TITLES.get(metric, metric)
            columns = {f"{view}/{metric}": (label, view) for view, label in LABELS.items()}
            columns[f"local/{metric}_worst10"] = (WORST, "local")
            lines = {}
            for column, (label, view) in columns.items():
                line = mean_line(label, column, [curve(h, column, over) for h in histories], over)
                lines[column] = line._replace(view=view, thin=label == WORST)
            if len(histories) == 1:
                own = f"local/{metric}"
                lines[own] = _over_clients(lines[own], histories[0], metric, over)
            drawn = [line for line in lines.values() if line.x]
            charts.append(LineChart(title + over.title, drawn, over.name, metric))
    return [chart for chart in charts if chart.lines]


def _over_clients(line: Line, history: Sequence[Row], metric: str, over: Over) -> Line:
    """The line with a band of the deviation over clients, if the run has measured it."""
    found = dict(zip(*curve(history, f"local/{metric}_std", over), strict=True))
    if not found:
        return line
    deviations = [found.get(x, math.nan) for x in line.x]
    ends = np.stack([np.subtract(line.y, deviations), np.add(line.y, deviations)])
    if metric in ALL_METRICS:
        ends = ends.clip(0, math.inf if falls(metric) or any(y > 1 for y in line.y) else 1.0)
    low, high = ends.tolist()
    return line._replace(low=low, high=high, band="± std over clients")


def thinned(values: Sequence[T], most: int) -> list[T]:
    """At most `most` of the values, evenly, with the first and the last.

    >>> thinned(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(values) <= most:
        return list(values)
    return [values[round(n * (len(values) - 1) / (most - 1))] for n in range(most)]
