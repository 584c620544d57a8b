"""The section about classes: accuracy of each one, where `flfast.evaluate` has measured it."""

import csv
from collections.abc import Sequence

from flfast.output.report.chart import DataTable, Section
from flfast.output.report.content import Content
from flfast.output.report.formats import count, value
from flfast.output.results.runs import RunRecord
from flfast.state.messages import printable
from flfast.state.regular_file import opener

_FILE = "evaluation/confusion.csv"
_MOST_CLASSES = 100


def classes(content: Content) -> Section | None:
    """Accuracy by class of the first evaluated run of each setting; None if there is none."""
    tables = []
    for name, setting in zip(content.names, content.settings, strict=True):
        run = next((run for run in setting.finished if (run.folder / _FILE).is_file()), None)
        rows = _rows(run) if run else []
        if run and rows:
            whose = "" if content.single else f" of {name}, seed {run.seed}"
            hidden = "" if len(rows) <= _MOST_CLASSES else f" (the first {_MOST_CLASSES})"
            headings = ["set", "class", "examples", "accuracy", "most frequent mistake"]
            caption = f"Classes{whose}{hidden}"
            tables.append(DataTable(caption, headings, rows[:_MOST_CLASSES]))
    intro = "Accuracy is the share of a class's examples that are predicted as it (its recall)."
    return Section("Classes", intro, tables=tables) if tables else None


def _rows(run: RunRecord) -> list[list[str]]:
    """A row for each class with examples; empty if the file is of another form."""
    try:
        with open(run.folder / _FILE, encoding="utf-8", newline="", opener=opener) as file:
            lines = [[*map(printable, line)] for line in csv.reader(file)]
        counted = [(line, [*map(int, line[2:])]) for line in lines[1:]]
        return [_row(line, lines[0][2:]) for line, counts in counted if sum(counts) > 0]
    except (OSError, ValueError, IndexError, csv.Error):
        return []


def _row(line: Sequence[str], names: Sequence[str]) -> list[str]:
    counts = dict(zip(names, map(int, line[2:]), strict=True))
    number, right = sum(counts.values()), counts.pop(line[1], 0)
    worst = max(counts, key=lambda name: counts[name], default="")
    mistake = f"{worst} ({count(counts[worst])})" if worst and counts[worst] else "-"
    return [line[0], line[1], count(number), value("accuracy", right / number), mistake]
