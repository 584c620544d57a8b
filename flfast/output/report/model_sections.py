"""The section about models of their own: results of clients by the architecture of their model."""

import math
from collections.abc import Iterator, Sequence

from flfast.output.report.content import Content
from flfast.output.report.section import Section
from flfast.output.results.charts import DataTable, LineChart
from flfast.output.results.formats import count, value
from flfast.output.results.history import Row, members, metric_names, number, series, total
from flfast.output.results.lines import curve, mean_line, over_seeds

_VIEWS = ("personal", "local", "finetuned")
_MOST_CHARTS = 4
_SIZE = "model/parameters_"
_COSTS = (
    "What a client costs by model. Kept: weights, and state between rounds; uploads and "
    "measured seconds of training are means over clients and rounds"
)


def models(content: Content) -> Section:
    """The headline of clients with each model; empty if all clients have the same one."""
    charts, rows, costs = [], list[list[str]](), list[list[str]]()
    for name, setting in content.named:
        histories = [run.history for run in setting.finished]
        found = _columns(histories[0]) if histories else {}
        costs += _costs(name, histories)
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
                marks = (value(metric, end) for end in (mean, low, high))
                rows.append([name, model, metric, *marks, count(len(last))])
    headings = ["setting", "model", "measured", "mean", "low", "high", "seeds"]
    tables = [DataTable("Last evaluation by model, over seeds", headings, rows, words=3)]
    headings = [*headings[:2], "clients", "parameters", "MFLOP", "kept", "uploaded", "seconds"]
    tables.append(DataTable(_COSTS, headings, costs, words=2))
    intro = "Means over the clients that have the model, weighted by their examples."
    return Section("Models", intro, charts[:_MOST_CHARTS], tables)


def _costs(name: str, histories: Sequence[Sequence[Row]]) -> Iterator[list[str]]:
    """A row for each model of a setting; sizes are of its first run, means over all of them."""
    first = histories[0][0] if histories else {}
    for model in (key.removeprefix(_SIZE) for key in first if key.startswith(_SIZE)):
        sizes = ("clients", "parameters", "flop", "kept_bytes")
        own, size, flop, kept = (number(first, f"model/{key}_{model}") for key in sizes)
        sums = ("cohort/clients", "comm/up_bytes", "time/train_s")
        trained, up, s = (sum(total(h, f"{key}_{model}") for h in histories) for key in sums)
        cells = [name, model, count(own), count(size), value("", flop / 1e6), value("bytes", kept)]
        called = trained or math.nan
        yield [*cells, value("bytes", up / called), value("s", s / called)]


def _columns(history: Sequence[Row]) -> dict[str, str]:
    """Columns of a metric of one model, and the metric."""
    metrics = [f"{view}/{name}" for view in _VIEWS for name in metric_names([history])]
    found = {f"{m}_{model}": m for m in metrics for model in members(history[0])}
    return {name: metric for name, metric in found.items() if name in history[-1]}
