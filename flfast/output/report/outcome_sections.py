"""Sections about results: the table of settings, tests, and curves."""

import math

from flfast.output.report.chart import DataTable, Section
from flfast.output.report.content import Content
from flfast.output.report.line_chart import line_chart
from flfast.output.results.columns import VIEWS
from flfast.output.results.formats import difference, p_value
from flfast.output.results.history import series
from flfast.output.results.lines import run_charts
from flfast.output.results.statistics import FEWEST_SEEDS

_FIRST_TESTS = 12


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
    """Accuracy and loss over rounds, over virtual time, and over bytes."""
    if len(content.settings) == 1:
        found = run_charts([run.history for run in content.settings[0].finished])
    else:
        columns = [*(f"{view}/accuracy" for view in VIEWS), "train/loss"]
        columns += [f"{view}/loss" for view in VIEWS]
        measured = [c for c in columns if any(series(run.history, c)[0] for run in content.runs)]
        found = [content.chart(column, column) for column in measured]
        found += content.criterion_charts[1:]
    charts = [chart for chart in map(line_chart, found) if chart]
    if not charts:
        return None
    intro = ""
    if any(len(setting.finished) >= FEWEST_SEEDS for setting in content.settings):
        intro = "Bands are 95 % intervals of the mean over seeds, of each round alone."
    elif any(line.band for chart in found for line in chart.lines):
        intro = "The band is the standard deviation over clients."
    return Section("Curves", intro, charts)
