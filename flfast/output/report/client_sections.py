"""Sections about clients: their results, those with the worst ones, and their data."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flfast.output.report.content import Content
from flfast.output.report.drawn import graph_chart
from flfast.output.report.section import Section
from flfast.output.results.charts import (
    DataTable,
    Line,
    LineChart,
    Look,
    RowChart,
)
from flfast.output.results.formats import count, value
from flfast.output.results.history import Row, metric_names, number
from flfast.output.results.lines import thinned
from flfast.output.results.runs import RunRecord, last_clients, partition
from flfast.state.messages import printable
from flfast.tasks.names import CLIENT_METRICS, falls, headline

_VIEWS = ("personal", "local", "val", "personal_val", "new")
_MOST_CLIENTS = 60
_MOST_CLASSES = 12
_MOST_PARTITIONS = 4
_WORST = 10
_MOST_TABLES = 6
_MOST_GRAPHS = 6
_MOST_LINKED = 100


def clients(content: Content) -> Section | None:
    """Distribution of accuracy or error over clients, and the clients with the worst one."""
    rows = {run.folder: last_clients(run) for run in content.runs if run.counts}
    column = _column(content, *rows.values())
    if column is None:
        return None
    # Of each run, the metric of the models that its clients would use.
    own = {
        run: column if _has(column, found) else _column(content, found) or column
        for run, found in rows.items()
    }
    column_name = " or ".join(dict.fromkeys(own[run] for run, found in rows.items() if found))
    lines: list[Line] = []
    summary: list[list[str]] = []
    worst: list[DataTable] = []
    for name, setting in content.named:
        pooled: list[float] = []
        for run in setting.finished:
            values = (number(row, own[run.folder]) for row in rows[run.folder])
            pooled += filter(math.isfinite, values)
        if not pooled:
            continue
        ordered = np.sort(pooled)
        shares = np.arange(1, len(ordered) + 1) / len(ordered)
        lines.append(Line(name, ordered.tolist(), shares.tolist()))
        marks = [float(np.quantile(ordered, q)) for q in (0.0, 0.1, 0.5, 0.9, 1.0)]
        first = setting.finished[0]
        of_first = own[first.folder]
        marked = (value(column, mark) for mark in marks)
        summary.append([name, of_first, *marked, count(len(ordered))])
        if len(worst) < _MOST_TABLES:
            worst.append(_worst(name, first, rows[first.folder], of_first, alone=content.single))
    better = "left" if falls(column) else "right"
    note = f"A line further {better} is better; a steep line means equal clients."
    name = _metric(column)
    title, share = f"Clients up to {CLIENT_METRICS.get(name, name)}", "share of clients"
    chart = LineChart(title, lines, column_name, share, note, steps=True)
    headings = ["setting", "measured", "lowest", "10 %", "median", "90 %", "highest", "clients"]
    table = DataTable(f"{column_name} over clients, all seeds together", headings, summary)
    intro = f"{column_name} of every client in the last round in which clients were evaluated."
    return Section("Clients", intro, [chart], [table, *worst])


def _column(content: Content, *tables: Sequence[Row]) -> str | None:
    """What clients are compared by: as runs are, if that is a user's or a score."""
    criterion = content.criterion.metric
    users = any(run.config.get("task") == "module" for run in content.runs)
    chosen = [criterion] * (users or criterion != "loss")
    names = (*chosen, *CLIENT_METRICS, headline(metric_names(tables)))
    found = (f"{view}/{metric}" for metric in names for view in _VIEWS)
    return next((column for column in found if any(_has(column, rows) for rows in tables)), None)


def _has(column: str, rows: Sequence[Row]) -> bool:
    return any(row.get(column) for row in rows)


def _metric(column: str) -> str:
    return column.partition("/")[2]


def _worst(name: str, run: RunRecord, rows: Sequence[Row], key: str, *, alone: bool) -> DataTable:
    listed = partition(run)
    labels = listed.get("class_names", [])
    sizes = {client["client_id"]: client for client in listed.get("clients", [])}
    measured = [row for row in rows if math.isfinite(number(row, key))]
    sign = -1 if falls(key) else 1
    measured.sort(key=lambda row: (sign * number(row, key), number(row, "client_id")))
    cells = []
    for row in measured[: min(_WORST, max(3, len(measured) // 3))]:
        client = sizes.get(int(number(row, "client_id")), {})
        shown = value(key, number(row, key))
        cells.append([_called(client or row), shown, *_data(client, labels)])
    whose = "" if alone else f" of {name}, seed {run.seed}"
    headings = ["client", key, "training examples", "test examples", "most frequent labels"]
    worst = f"{'highest' if falls(key) else 'lowest'} {_metric(key)}"
    return DataTable(f"Clients{whose} with the {worst}", headings, cells)


def _called(client: Mapping[str, Any]) -> str:
    """A client's number, and its name if the data name it."""
    name = printable(str(client.get("name", "")))
    return f"{client['client_id']} {name}".strip()


def _labels_of(names: Sequence[str], num: int) -> list[str]:
    """What labels are called: their names, or their numbers."""
    return (
        [printable(str(n)) for n in names] if len(names) == num else [str(n) for n in range(num)]
    )


def _data(client: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    if not client:
        return ["-", "-", "-"]
    labels = np.array(client["labels"])
    order = [int(c) for c in np.argsort(-labels, kind="stable")[:3] if labels[c]]
    share = 100 * labels / max(1, labels.sum())
    called = _labels_of(names, len(labels))
    words = ", ".join(f"{called[label]} ({share[label]:.0f} %)" for label in order)
    return [count(client["train"]), count(client["test"]), words]


def partitions(content: Content) -> Section:
    """Examples and labels of clients, once for each partition that differs."""
    different: dict[str, tuple[RunRecord, dict[str, Any]]] = {}
    for run in content.runs:
        found = partition(run)
        if found.get("clients"):
            apart = [{**client, "neighbours": None} for client in found["clients"]]
            different.setdefault(str({**found, "clients": apart}), (run, found))
    chosen = list(different.values())[:_MOST_PARTITIONS]
    labelled = [(run, found) for run, found in chosen if found["clients"][0]["labels"]]
    charts = [_labels(run, found, several=len(chosen) > 1) for run, found in labelled]
    numbers = ["clients", "classes", "examples"]
    sizes = {"smallest": "min", "median": "median", "largest": "max"}
    rows = [
        [
            _source(run),
            *(count(found[f"num_{name}"]) for name in numbers),
            *(count(found["client_size"][key]) for key in sizes.values()),
            count(found["num_central_test"]),
        ]
        for run, found in chosen
    ]
    headings = ["run", *numbers, *sizes, "central test"]
    more = len(different) - len(chosen)
    intro = f"{more} more partitions are not shown." if more else ""
    tables = [DataTable("Sizes", headings, rows)] if charts else []
    return Section("Partition", intro, charts, tables)


def _source(run: RunRecord) -> str:
    words = [run.choices.get("data", ""), run.choices.get("partition", ""), f"seed {run.seed}"]
    return " · ".join(word for word in words if word)


def _labels(run: RunRecord, content: Mapping[str, Any], *, several: bool) -> RowChart:
    clients = content["clients"]
    shown = [clients[n] for n in thinned(range(len(clients)), _MOST_CLIENTS)]
    classes = len(shown[0]["labels"])
    series = [f"label {label}" for label in _labels_of(content.get("class_names", []), classes)]
    bars = {_called(client): client["labels"] for client in shown}
    if classes > _MOST_CLASSES:
        # More colours than one can tell apart: the frequent labels of a client instead.
        series = ["most frequent label", "second", "third", "all others"]
        ranked = {name: sorted(parts, reverse=True) for name, parts in bars.items()}
        bars = {name: [*parts[:3], sum(parts[3:])] for name, parts in ranked.items()}
    title = "Examples of each client by label" + (f" ({_source(run)})" if several else "")
    few = len(shown) < content["num_clients"]
    note = f"{len(shown)} of {content['num_clients']:,} clients." if few else ""
    rows = RowChart(title, "", [*bars], "client", [*map(Look, series)], "{:g}".format, note=note)
    return rows.stacked([*bars.values()])


def topologies(content: Content) -> Section:
    """The graph of up to 100 clients, in the first run of each setting that has one."""
    charts = []
    for name, setting in content.named:
        listed = partition(setting.finished[0]).get("clients", []) if setting.finished else []
        neighbours = [client["neighbours"] for client in listed if "neighbours" in client]
        last = max((client for near in neighbours for client in near), default=0)
        if not last < len(neighbours) <= _MOST_LINKED:
            continue
        rows = last_clients(setting.finished[0])
        column = _column(content, rows) or ""
        values = {int(number(row, "client_id")): number(row, column) for row in rows}
        title = "Neighbours in round 1" + ("" if content.single else f", {name}")
        charts.append(graph_chart(title, neighbours, values, column))
    return Section("Topology", "", charts[:_MOST_GRAPHS])
