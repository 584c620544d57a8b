"""Sections about results: tests, curves, and what else a task shows, if it is there."""

import base64
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from flfast.output.report.chart import Chart, DataTable, Section
from flfast.output.report.content import Content
from flfast.output.report.line_chart import line_chart
from flfast.output.report.svg import element
from flfast.output.results.columns import VIEWS
from flfast.output.results.forecast_lines import forecast_charts
from flfast.output.results.formats import count, difference, p_value, value
from flfast.output.results.history import is_measured, score_names
from flfast.output.results.lines import LineChart, run_charts
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


def tests(content: Content) -> Section | None:
    """Paired tests between settings."""
    if content.criterion is None or len(content.ranking) < 2:
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


def curves(content: Content) -> Section | None:
    """Scores and losses over rounds, over virtual time, and over bytes."""
    if len(content.settings) == 1:
        found = run_charts([run.history for run in content.settings[0].finished])
    else:
        histories, views = [run.history for run in content.runs], ("train", *VIEWS)
        names = [*score_names(histories, views), "loss"]
        columns = [f"{view}/{name}" for name in names for view in views]
        measured = [c for c in columns if is_measured(histories, c)]
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


def classes(content: Content) -> Section | None:
    """Accuracy by class of the first evaluated run of each setting; None if there is none."""
    tables = []
    for name, run, rows in _having(content, _CONFUSION, "classes are", _class_rows):
        if rows:
            whose = "" if content.single else f" of {name}, seed {run.seed}"
            hidden = "" if len(rows) <= _MOST_CLASSES else f" (the first {_MOST_CLASSES})"
            headings = ["set", "class", "examples", "accuracy", "most frequent mistake"]
            caption = f"Classes{whose}{hidden}"
            tables.append(DataTable(caption, headings, rows[:_MOST_CLASSES]))
    intro = "Accuracy is the share of a class's examples that are predicted as it (its recall)."
    return Section("Classes", intro, tables=tables) if tables else None


def survival(content: Content) -> Section | None:
    """Kaplan-Meier curves of the first evaluated run of each setting; None if there is none."""
    intro = "The share of examples whose event is later than a time, by predicted risk."
    return _charted(content, "survival", curve_charts, intro)


def forecasts(content: Content) -> Section | None:
    """Forecasts of some clients, of the first evaluated run of each setting; None without any."""
    intro = "Clients with the best, median and worst MASE; below 1 beats the seasonal naive error."
    return _charted(content, "forecasts", forecast_charts, intro)


def _charted(
    content: Content, name: str, charts_of: Callable[[Path], Sequence[LineChart]], intro: str
) -> Section | None:
    """Charts of `evaluation/NAME.csv` of the first run of each setting that has it."""
    found = []
    for whose, _, charts in _having(content, f"evaluation/{name}.csv", f"{name} is", charts_of):
        end = "" if content.single else f", {whose}"
        found += [line_chart(c._replace(title=f"{c.title}{end}")) for c in charts]
    return Section(name.title(), intro, [chart for chart in found if chart]) if found else None


def segmentation(content: Content) -> Section | None:
    """Test images with masks of the first such run of each setting; None if there is none."""
    found = []
    for name, run, (picture, rows) in _having(content, "masks.png", "masks are", _masks):
        title = f"Test images{'' if content.single else f', {name}, seed {run.seed}'}"
        found.append(_picture(title, picture, rows))
    intro = "Test images, their masks, and what the server's model predicts, a colour a class."
    return Section("Segmentation", intro, found) if found else None


def _masks(path: Path) -> tuple[bytes, list[list[str]]]:
    """A PNG file, and the rows of the table of its images."""
    picture, table = read_file(path), path.with_suffix(".csv")
    if picture[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError(f"{path} is no PNG file")
    rows = parse_table(read_file(table), table, *_OF_MASKS)
    return picture, [[row[name] for name in _OF_MASKS] for row in rows]


def _picture(title: str, picture: bytes, rows: list[list[str]]) -> Chart:
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    href = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    image = element("image", href=href, width=width, height=height)
    box = f"0 0 {width} {height}"
    svg = element("svg", image, viewBox=box, width="100%", role="img", aria_label=title)
    return Chart(title, svg, [], DataTable(title, _OF_MASKS, rows))


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
