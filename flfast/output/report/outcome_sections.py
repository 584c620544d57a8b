"""Sections about results: tests, curves, and what else a task shows, if it is there."""

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from flfast.output.report.content import Content
from flfast.output.report.drawn import image_chart
from flfast.output.report.section import Section
from flfast.output.results.charts import (
    DataTable,
    LineChart,
    Look,
    Mark,
    RowChart,
)
from flfast.output.results.columns import VIEWS
from flfast.output.results.forecast_lines import forecast_charts
from flfast.output.results.formats import count, difference, interval, p_value, tick, value
from flfast.output.results.history import is_measured, score_names
from flfast.output.results.lines import run_charts
from flfast.output.results.runs import RunRecord
from flfast.output.results.statistics import FEWEST_SEEDS, Comparison
from flfast.output.results.survival_curves import curve_charts
from flfast.output.results.table import parse_table
from flfast.state.messages import first_line
from flfast.state.regular_file import read_file

log = logging.getLogger(__name__)

_FIRST_TESTS = 12
_CONFUSION = "evaluation/confusion.csv"
_MOST_CLASSES = 100
_OF_MASKS = ("example", "client_id", "dice")

T = TypeVar("T")


def intervals(content: Content) -> RowChart | None:
    """The criterion, best setting first; None for a single run or without results."""
    if content.single or not content.ranking:
        return None
    column, marks, cells = content.criterion.name, list[Mark](), []
    for row, name in enumerate(content.ranking):
        place, estimate = content.names.index(name), content.intervals[name]
        shown, results = interval(column, estimate), content.results[name]
        if math.isfinite(estimate.low):
            marks.append(Mark(row, place, estimate.low, estimate.high, kind="whisker"))
        for seed, result in results.items():
            tip = f"{name}, seed {seed}: {value(column, result)}"
            marks.append(Mark(row, place, result, result, tip, "seed"))
        tip = f"{name}: {shown}, {estimate.num} seeds"
        marks.append(Mark(row, place, estimate.mean, estimate.mean, tip, "dot"))
        by_seed = ", ".join(value(column, result) for result in results.values())
        cells.append([name, shown, str(estimate.num), by_seed])
    values = [result for name in content.ranking for result in content.results[name].values()]
    ends = [end for shape in marks for end in (shape.low, shape.high)]
    room = 0.04 * ((max(ends) - min(ends)) or 0.02 * abs(max(ends)) or 1.0)
    headings = ["setting", "mean and 95 % interval", "seeds", "value of each seed"]
    return RowChart(
        f"Last {column}",
        column,
        content.ranking,
        "setting",
        [Look("") for _ in content.names],
        partial(tick, column, values=values),
        marks,
        (min(ends) - room, max(ends) + room),
        above=True,
        note="Large dot: mean. Line: 95 % interval of the mean. Small dots: seeds.",
        table=DataTable(f"Last {column}", headings, cells),
    )


def tests(content: Content) -> Section | None:
    """Paired tests between settings."""
    if len(content.ranking) < 2:
        return None
    column = content.criterion.name
    rows = []
    for test in content.comparisons:
        shown = difference(test.difference, percent=content.in_percent)
        cells = [f"{test.higher} and {test.lower}", shown]
        cells += [str(test.difference.num), p_value(test.p), p_value(test.adjusted)]
        rows.append([*cells, _verdict(test)])
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


def _verdict(comparison: Comparison) -> str:
    if comparison.difference.num < FEWEST_SEEDS:
        return "too few seeds"
    if math.isnan(comparison.adjusted):
        return "all differences equal"
    return "certain" if comparison.certain else "not certain"


def curves(content: Content) -> Section:
    """Scores and losses over rounds, over virtual time, and over bytes."""
    if len(content.settings) == 1:
        charts = run_charts([run.history for run in content.settings[0].finished])
    else:
        histories, views = [run.history for run in content.runs], ("train", *VIEWS)
        names = [*score_names(histories, views), "loss"]
        columns = [f"{view}/{name}" for name in names for view in views]
        measured = [c for c in columns if is_measured(histories, c)]
        charts = [content.chart(column, column) for column in measured]
        charts += content.criterion_charts[1:]
    intro = ""
    if any(len(setting.finished) >= FEWEST_SEEDS for setting in content.settings):
        intro = "Bands are 95 % intervals of the mean over seeds, of each round alone."
    elif any(line.band for chart in charts for line in chart.lines):
        intro = "The band is the standard deviation over clients."
    return Section("Curves", intro, charts)


def classes(content: Content) -> Section:
    """Accuracy by class of the first evaluated run of each setting."""
    tables = []
    for name, run, rows in _having(content, _CONFUSION, "classes are", _class_rows):
        whose = "" if content.single else f" of {name}, seed {run.seed}"
        hidden = "" if len(rows) <= _MOST_CLASSES else f" (the first {_MOST_CLASSES})"
        headings = ["set", "class", "examples", "accuracy", "most frequent mistake"]
        tables.append(DataTable(f"Classes{whose}{hidden}", headings, rows[:_MOST_CLASSES]))
    intro = "Accuracy is the share of a class's examples that are predicted as it (its recall)."
    return Section("Classes", intro, tables=tables)


def survival(content: Content) -> Section:
    """Kaplan-Meier curves of the first evaluated run of each setting."""
    intro = "The share of examples whose event is later than a time, by predicted risk."
    return _charted(content, "survival", curve_charts, intro)


def forecasts(content: Content) -> Section:
    """Forecasts of some clients, of the first evaluated run of each setting."""
    intro = "Clients with the best, median and worst MASE; below 1 beats the seasonal naive error."
    return _charted(content, "forecasts", forecast_charts, intro)


def _charted(
    content: Content, name: str, charts_of: Callable[[Path], Sequence[LineChart]], intro: str
) -> Section:
    """Charts of `evaluation/NAME.csv` of the first run of each setting that has it."""
    shown = list[LineChart]()
    for whose, _, charts in _having(content, f"evaluation/{name}.csv", f"{name} is", charts_of):
        end = "" if content.single else f", {whose}"
        shown += [chart._replace(title=f"{chart.title}{end}") for chart in charts]
    return Section(name.title(), intro, shown)


def segmentation(content: Content) -> Section:
    """Test images with masks of the first such run of each setting."""
    shown = []
    for name, run, (picture, rows) in _having(content, "masks.png", "masks are", _masks):
        title = f"Test images{'' if content.single else f', {name}, seed {run.seed}'}"
        shown.append(image_chart(title, picture, DataTable(title, _OF_MASKS, rows)))
    intro = "Test images, their masks, and what the server's model predicts, a colour a class."
    return Section("Segmentation", intro, shown)


def _masks(path: Path) -> tuple[bytes, list[list[str]]]:
    """A PNG file, and the rows of the table of its images."""
    picture, table = read_file(path), path.with_suffix(".csv")
    if picture[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError(f"{path} is no PNG file")
    rows = parse_table(read_file(table), table, *_OF_MASKS)
    return picture, [[row[name] for name in _OF_MASKS] for row in rows]


def _having(
    content: Content, file: str, what: str, read: Callable[[Path], T]
) -> Iterator[tuple[str, RunRecord, T]]:
    """(name of a setting, its first finished run that has the file, what `read` finds there).

    A damaged file is left out. A warning then says that `what`, such as `masks are`, not shown.
    """
    for name, setting in content.named:
        for run in [r for r in setting.finished if (r.folder / file).exists()][:1]:
            try:
                found = read(run.folder / file)
            except (OSError, ValueError) as error:
                log.warning("%s not shown: %s", what, first_line(error))
                continue
            yield name, run, found


def _class_rows(path: Path) -> list[list[str]]:
    """A row for each class with examples."""
    rows = parse_table(read_file(path), path, "set", "target")
    return [found for row in rows if (found := _class_row(row, path))]


def _class_row(row: dict[str, str], path: Path) -> list[str]:
    """A row of the report; empty for a class without examples."""
    name, target = row.pop("set"), row.pop("target")
    if target not in row or not all(re.fullmatch("[0-9]{1,18}", cell) for cell in row.values()):
        raise ValueError(f"{path} has other cells than counts of classes")
    counts = {predicted: int(cell) for predicted, cell in row.items()}
    number, right = sum(counts.values()), counts.pop(target)
    if not number:
        return []
    worst = max(counts, key=lambda other: counts[other], default="")
    mistake = f"{worst} ({count(counts[worst])})" if worst and counts[worst] else "-"
    return [name, target, count(number), value("accuracy", right / number), mistake]
