"""Sections about settings: what differs, plans by round, runs, and whole configs."""

import os
from pathlib import Path
from urllib.parse import quote

import yaml
from markupsafe import Markup

from flfast.output.report.content import Content
from flfast.output.report.outcome_tables import runs_table, settings_table
from flfast.output.report.section import Section
from flfast.output.report.svg import element
from flfast.output.results.charts import DataTable, Line, LineChart
from flfast.output.results.history import number, parsed
from flfast.output.results.runs import RunRecord

_NUMBERS = {
    "plan/batch_size": "Batch size",
    "plan/accumulate": "Accumulated batches",
    "plan/lr": "Learning rate",
}
_NOTES = {"plan/batch_size": "-1: all examples of a client."}
_WORDS = ("plan/strategy", "plan/devices", "plan/precision")
_MOST_CONFIGS = 12


def settings(content: Content) -> Section | None:
    """Settings in which runs differ; None if there is only one."""
    if len(content.settings) < 2:
        return None
    # With one short key, its values are the settings' names.
    named = content.names != [setting.values[content.keys[0]] for setting in content.settings]
    table = settings_table(content, "Settings, mean ± standard deviation over seeds", named=named)
    intro = "Runs differ in these settings, and in nothing else but the seed."
    if content.left_out:
        intro += f" Left out, since they repeat a seed of their setting: {len(content.left_out)}."
    return Section("Settings that differ", intro, tables=[table])


def plans(content: Content) -> Section:
    """The plan by round, where it changes."""
    first = {name: setting.finished[0] for name, setting in content.named if setting.finished}
    charts = []
    for column, title in _NUMBERS.items():
        if any(_changes(run, column) for run in first.values()):
            lines = [Line(name, *_finite(run, column)) for name, run in first.items()]
            note = _NOTES.get(column, "")
            charts.append(LineChart(title, lines, "round", column, note, steps=True))
    rows = [
        [name, column.partition("/")[2], _spans(run, column)]
        for name, run in first.items()
        for column in _WORDS
        if _changes(run, column)
    ]
    tables = [DataTable("Other changes", ["setting", "of", "rounds"], rows)]
    return Section("Plan by round", "Of the first seed of each setting.", charts, tables)


def _finite(run: RunRecord, column: str) -> tuple[list[float], list[float]]:
    rows = [row for row in run.history if isinstance(parsed(row.get(column)), (int, float))]
    return [number(row, "round") for row in rows], [number(row, column) for row in rows]


def _changes(run: RunRecord, column: str) -> bool:
    return len({row[column] for row in run.history if row.get(column)}) > 1


def _spans(run: RunRecord, column: str) -> str:
    spans: list[tuple[str, str]] = []
    for row in run.history:
        if row.get(column) and (not spans or spans[-1][1] != row[column]):
            spans.append((row["round"], row[column]))
    return ", ".join(f"from {round_idx}: {cell}" for round_idx, cell in spans)


def runs(content: Content, page_folder: Path) -> Section:
    """All runs and their folders, as links from the folder of the page."""
    links = [_link(run.folder, page_folder) for run in content.runs]
    return Section("Runs", "", tables=[runs_table(content, "Runs", links, "folder")])


def _link(folder: Path, page_folder: Path) -> Markup:
    # A name such as `javascript:x` must stay a path: it begins with a dot.
    path = os.path.relpath(folder.resolve(), page_folder.resolve())
    return element("a", str(folder), href=quote(f"./{path}/"))


def configs(content: Content) -> Section:
    """The whole config of the first run of each setting, folded."""
    shown = content.named[:_MOST_CONFIGS]
    folded = [
        (
            f"Config of {setting.runs[0].folder}" if len(shown) == 1 else f"{name}, first run",
            yaml.safe_dump(setting.runs[0].config, sort_keys=False, allow_unicode=True),
        )
        for name, setting in shown
    ]
    hidden = len(content.settings) - len(shown)
    intro = f"{hidden} more settings: see .hydra/config.yaml in their folders." if hidden else ""
    return Section("Configuration", intro, folded=folded)
