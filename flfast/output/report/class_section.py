"""The section about classes: accuracy of each one, where `flfast.evaluate` has measured it."""

import logging
import re
from pathlib import Path

from flfast.output.report.chart import DataTable, Section
from flfast.output.report.content import Content
from flfast.output.results.formats import count, value
from flfast.output.results.runs import RunRecord
from flfast.output.results.table import parse_table
from flfast.state.messages import first_line
from flfast.state.regular_file import read_file

log = logging.getLogger(__name__)

_FILE = "evaluation/confusion.csv"
_MOST_CLASSES = 100


def classes(content: Content) -> Section | None:
    """Accuracy by class of the first evaluated run of each setting; None if there is none."""
    tables = []
    for name, setting in content.named:
        run = next((run for run in setting.finished if (run.folder / _FILE).exists()), None)
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
    """A row for each class with examples; empty, with a warning, if the file is damaged."""
    path = run.folder / _FILE
    try:
        found = [_row(row, path) for row in parse_table(read_file(path), path, "set", "target")]
    except (OSError, ValueError) as error:
        log.warning("classes are not shown: %s", first_line(error))
        return []
    return [row for row in found if row]


def _row(row: dict[str, str], path: Path) -> list[str]:
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
