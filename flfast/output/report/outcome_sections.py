"""Sections about results: the table of settings, tests, and curves."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from flfast.output.report.chart import Chart, DataTable, Section
from flfast.output.report.content import Content, interval_line, over_seeds
from flfast.output.report.formats import (
    axis,
    count,
    difference,
    is_accuracy,
    p_value,
    percent,
    value,
)
from flfast.output.report.interval_chart import Estimate, interval_chart
from flfast.output.report.line_chart import Axes, Line, line_chart
from flfast.output.results.columns import VIEWS
from flfast.output.results.durations import unit
from flfast.output.results.history import clock, series
from flfast.output.results.statistics import FEWEST_SEEDS, Interval

_FIRST_TESTS = 12


def result_chart(content: Content) -> Chart | None:
    """Means and intervals of all settings, best first; None for a single run."""
    if content.criterion is None or content.single:
        return None
    estimates = [
        Estimate(n, content.intervals[n], content.results[n], content.names.index(n))
        for n in content.ranking
    ]
    return interval_chart(f"Last {content.criterion.name}", estimates, content.criterion.name)


def tests(content: Content) -> Section | None:
    """Paired tests between settings."""
    if content.criterion is None or len(content.ranking) < 2:
        return None
    column = content.criterion.name
    rows = [
        [
            f"{c.first} and {c.second}",
            difference(column, c.difference),
            str(c.difference.num),
            p_value(c.p),
            p_value(c.adjusted),
            _verdict(c.difference.num, c.adjusted, certain=c.certain),
        ]
        for c in content.comparisons
    ]
    headings = ["settings", "first minus second", "common seeds", "p", "p (Holm)", "verdict"]
    tables = [DataTable(f"Differences of {column}", headings, rows[:_FIRST_TESTS])]
    if len(rows) > _FIRST_TESTS:
        tables.append(DataTable("Other pairs, with larger p", headings, rows[_FIRST_TESTS:]))
    intro = (
        "Paired t-tests over the seeds that both settings have. Holm's correction is over all "
        "pairs, so that the probability of any false “certain” is at most 5 %. Intervals of "
        "differences are 95 % each, without the correction."
    )
    return Section("Tests", intro, tables=tables)


def _verdict(num: int, adjusted: float, *, certain: bool) -> str:
    if num < FEWEST_SEEDS:
        return "too few seeds"
    if math.isnan(adjusted):
        return "all differences equal"
    return "certain" if certain else "not certain"


def curves(content: Content) -> Section | None:
    """Accuracy and loss over rounds and over virtual time."""
    charts = [
        *_over_rounds(content, "accuracy"),
        *_over_rounds(content, "loss"),
        *_over_time(content),
    ]
    if not charts:
        return None
    several = any(len(setting.finished) >= FEWEST_SEEDS for setting in content.settings)
    intro = "Bands are 95 % intervals of the mean over seeds, of each round alone."
    return Section("Curves", intro if several else "", charts)


def _over_rounds(content: Content, metric: str) -> list[Chart]:
    views = VIEWS if metric == "accuracy" else ("train", *VIEWS)
    columns = [c for c in (f"{view}/{metric}" for view in views) if _measured(content, c)]
    if len(content.settings) == 1:
        lines = [content.mean_line(0, column, column) for column in columns]
        found = line_chart(metric.capitalize(), lines, _axes("round", metric, count))
        return [found] if found else []
    places = range(len(content.settings))
    charts = [
        line_chart(c, [content.mean_line(p, c) for p in places], _axes("round", c, count))
        for c in columns
    ]
    return [chart for chart in charts if chart]


def _over_time(content: Content) -> list[Chart]:
    """The criterion over virtual time, interpolated between rounds while all seeds run."""
    latest = [max(clock(run.history).values(), default=0.0) for run in content.runs]
    if content.criterion is None or not any(latest):
        return []
    size, name = unit(max(latest))
    lines = [_time_line(content, place, size) for place in range(len(content.settings))]
    axes = _axes(f"virtual time, {name}", content.criterion.name, lambda x: f"{x:.3g}")
    found = line_chart(f"{content.criterion.name} over virtual time", lines, axes)
    return [found] if found else []


def _time_line(content: Content, place: int, size: float) -> Line:
    assert content.criterion is not None
    curves_of_runs: list[tuple[list[float], list[float]]] = []
    for run in content.settings[place].finished:
        seconds = clock(run.history)
        rounds, values = series(run.history, content.criterion.column(run.history))
        points = zip(rounds, values, strict=True)
        known = [(seconds[r] / size, value) for r, value in points if r in seconds]
        if known:
            curves_of_runs.append(([x for x, _ in known], [y for _, y in known]))
    name = content.names[place]
    if not curves_of_runs:
        return Line(name, [], [])
    first = max(x[0] for x, _ in curves_of_runs)
    last = min(x[-1] for x, _ in curves_of_runs)
    if not last > first:
        return Line(name, [], [])
    places = np.linspace(first, last, 60)
    values_at = np.array([np.interp(places, x, y) for x, y in curves_of_runs]).T
    found: Sequence[Interval] = [over_seeds(content.criterion.name, row) for row in values_at]
    return interval_line(name, places.tolist(), found)


def _measured(content: Content, column: str) -> bool:
    return any(series(run.history, column)[0] for run in content.runs)


def _axes(x: str, column: str, x_form: Callable[[float], str]) -> Axes:
    form = percent if is_accuracy(column) else axis
    return Axes(x, column, x_form, form, lambda y: value(column, y))
