"""The section about models of their own: results of clients by the architecture of their model."""

import re

from flfast.output.report.chart import DataTable, Section
from flfast.output.report.content import Content
from flfast.output.report.line_chart import line_chart
from flfast.output.results.formats import count, value
from flfast.output.results.history import Row, series
from flfast.output.results.lines import LineChart, curve, mean_line, over_seeds

_BY_MODEL = re.compile(r"((?:personal|local|finetuned)/(?:accuracy|mae))_(?!std$|worst10$)(.+)")
_MOST_CHARTS = 4


def models(content: Content) -> Section | None:
    """The headline of clients with each model; None if all clients have the same one."""
    charts, rows = [], list[list[str]]()
    for name, setting in content.named:
        histories = [run.history for run in setting.finished]
        found = _columns(histories[0][-1]) if histories else {}
        whose = "" if content.single else f" of {name}"
        for metric in dict.fromkeys(found.values()):
            names = {c: c.removeprefix(f"{metric}_") for c, m in found.items() if m == metric}
            lines = [
                mean_line(model, column, [curve(history, column) for history in histories])
                for column, model in names.items()
            ]
            charts.append(LineChart(f"{metric} by model{whose}", lines, "round", metric))
            for column, model in names.items():
                last = [y[-1] for _, y in (series(h, column) for h in histories) if len(y)]
                if not last:
                    continue
                mean, low, high = over_seeds(metric, last)[:3]
                marks = (value(metric, number) for number in (mean, low, high))
                rows.append([name, model, metric, *marks, count(len(last))])
    drawn = [chart for chart in map(line_chart, charts[:_MOST_CHARTS]) if chart]
    if not rows:
        return None
    headings = ["setting", "model", "measured", "mean", "low", "high", "seeds"]
    table = DataTable("Last evaluation by model, over seeds", headings, rows, words=3)
    intro = "Means over the clients that have the model, weighted by their examples."
    return Section("Models", intro, drawn, [table])


def _columns(row: Row) -> dict[str, str]:
    """Columns of a metric of one model, and the metric."""
    found = {name: _BY_MODEL.fullmatch(name) for name in row}
    return {name: match[1] for name, match in found.items() if match}
