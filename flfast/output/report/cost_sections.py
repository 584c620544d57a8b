"""Sections about costs: time and bytes to a target, time of phases, bytes, virtual time."""

import math
from collections.abc import Sequence
from functools import partial

from flfast.output.report.content import Content
from flfast.output.report.section import Section
from flfast.output.results.charts import DataTable, Look, RowChart
from flfast.output.results.criterion import Criterion, spent_until
from flfast.output.results.formats import interval, readable, tick, value
from flfast.output.results.history import clock, series, total
from flfast.output.results.runs import RunRecord
from flfast.output.results.statistics import Interval, mean_interval

_STEPS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)
_MOST_STEPS = 5
_PHASES = {"time/train_s": "training", "time/eval_s": "evaluation"}


def targets(content: Content) -> Section | None:
    """Rounds, time and bytes until a score or a loss; None if nothing was evaluated."""
    criterion, common = content.criterion, content.target
    if common is None:
        return None
    reaching = "all finished runs reach that improve at all"
    goal = f"until {criterion.name} reaches"
    headings = {"rounds": "rounds", "seconds": "time", "bytes": "bytes up and down"}
    if any(clock(run.history) for run in content.runs):
        headings["virtual_seconds"] = "virtual time"
    costs = partial(_costs, criterion, list(headings))
    if len(content.settings) == 1 and criterion.rises:
        runs = content.settings[0].finished
        curves = [series(run.history, criterion.column(run.history))[1] for run in runs]
        above = max(curve[0] for curve in curves if curve)
        chosen = [step for step in _STEPS if above < step <= common][-_MOST_STEPS:] or [common]
        intro = f"Values that {reaching}, and what they had spent by then."
        rows = [
            [tick(criterion.name, target, [target]), *costs(target, runs)] for target in chosen
        ]
        first, goal = "target", f"{goal} a target"
    else:
        what = "highest value" if criterion.rises else "lowest loss"
        intro = f"The target is the {what} that {reaching}."
        rows = [[name, *costs(common, setting.finished)] for name, setting in content.named]
        first, goal = "setting", f"{goal} {value(criterion.name, common)}"
    intro += " Seconds are those of training and evaluation on the machine that ran it."
    table = DataTable(f"Costs {goal}", [first, *headings.values(), "runs"], rows)
    return Section("Costs to a target", intro, tables=[table])


def _costs(
    criterion: Criterion, fields: Sequence[str], target: float, runs: Sequence[RunRecord]
) -> list[str]:
    spent = [spent_until(run.history, criterion, target) for run in runs]
    means = (interval(name, _over([getattr(one, name) for one in spent])) for name in fields)
    return [*means, str(len(spent))]


def _over(values: Sequence[float]) -> Interval:
    """Mean over runs and its interval; none if a run has no value: it misses the target."""
    complete = all(map(math.isfinite, values))
    return mean_interval(values if complete else [], bounds=(0.0, math.inf))


def phases(content: Content) -> Section:
    """Time of training and evaluation, and bytes, of whole runs."""
    bars: dict[str, list[float]] = {}
    rows = []
    for name, setting in content.named:
        if not setting.finished:
            continue
        means = [_mean(setting.finished, column) for column in _PHASES]
        ways = [_mean(setting.finished, f"comm/{way}_bytes") for way in ("up", "down")]
        bars[name] = [mean.mean for mean in means]
        rounds = _over([len(run.history) - 1 for run in setting.finished])
        cells = [name, interval("rounds", rounds)]
        cells += [interval("seconds", mean) for mean in means]
        rows.append([*cells, *(interval("bytes", way) for way in ways)])
    chart = RowChart(
        "Seconds of each phase",
        "",
        [*bars],
        "setting",
        [*map(Look, _PHASES.values())],
        "{:.3g} s".format,
        above=True,
        note="Mean over seeds.",
    )
    headings = ["setting", "rounds", *_PHASES.values(), "bytes up", "bytes down"]
    table = DataTable("Costs of a whole run, mean over seeds", headings, rows)
    return Section("Time and bytes", "", [chart.stacked([*bars.values()])], [table])


def _mean(runs: Sequence[RunRecord], *columns: str) -> Interval:
    return _over([total(run.history, *columns) for run in runs])


def virtual_time(content: Content) -> Section | None:
    """Staleness and clients in flight, where the pace measures time."""
    if not any(clock(run.history) for run in content.runs):
        return None
    names = {
        "clock/staleness": "Mean staleness of uploads",
        "clock/staleness_max": "Largest staleness of a round",
        "clock/in_flight": "Clients at work at the end of a round",
        "clock/seconds": "Virtual seconds since the start",
    }
    charts = [
        content.chart(title, column)
        for column, title in names.items()
        if any(v for run in content.runs for v in series(run.history, column)[1])
    ]
    rows = [
        [name, readable(max(clock(setting.finished[0].history).values(), default=math.nan))]
        for name, setting in content.named
        if setting.finished
    ]
    intro = "Staleness is the number of server steps between a client's download and its upload."
    table = DataTable("Virtual time of a whole run, of the first seed", ["setting", "time"], rows)
    return Section("Virtual time", intro, charts, [table])


def lost_clients(content: Content) -> Section | None:
    """Clients that dropped out, were idle, or whose uploads were rejected."""
    names = {"cohort/rejected": "rejected", "cohort/dropped": "dropped", "cohort/idle": "idle"}
    rows = []
    for name, setting in content.named:
        found = [_mean(setting.finished, column) for column in names]
        trained = _mean(setting.finished, "cohort/clients")
        if setting.finished:
            share = found[0].mean / (trained.mean or math.nan)
            cells = [interval("clients", one) for one in found]
            shown = tick("share", round(share, 4)) if math.isfinite(share) else "-"
            rows.append([name, interval("clients", trained), *cells, shown])
    columns = [c for c in names if any(total(run.history, c) for run in content.runs)]
    if not columns:
        return None
    titles = {column: f"Clients {names[column]} in each round" for column in columns}
    charts = [content.chart(title, column) for column, title in titles.items()]
    headings = ["setting", "clients in cohorts", *names.values(), "rejected of cohorts"]
    table = DataTable("Clients over all rounds, mean over seeds", headings, rows)
    intro = (
        "Rejected: the server refused the upload. Dropped: the client or its upload was lost. "
        "Idle: the client was drawn and not selected."
    )
    return Section("Lost clients", intro, charts, [table])
