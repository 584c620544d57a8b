"""CSV tables of rounds that survive kills, resumes and new columns. Torch-free."""

import csv
import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

Row = Mapping[str, Any]


class RoundTable:
    """A CSV file that grows with the rounds; every row has a column `round`.

    What an earlier process wrote stays, except rounds from the first one appended on: a run that
    is killed and resumed leaves the file of a run that was never killed.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._path = path
        self._columns = list(columns)
        self._started = False
        self._waiting: list[Row] = []

    def append(self, rows: Sequence[Row], *, round_idx: int) -> None:
        """Write the rows of one round to the disk; columns not seen before go to the end.

        Where the disk takes none they wait for the next round's, with a warning.
        """
        waiting = [*self._waiting, *rows]
        first = int(waiting[0]["round"]) if self._waiting else round_idx
        try:
            self._write(waiting, round_idx=first)
        except OSError as error:
            if not self._waiting:
                log.warning("%s: %s; training goes on", self._path, error.strerror)
            # What was written of them is not trusted.
            self._waiting, self._started = waiting, False
        else:
            self._waiting = []

    def _write(self, rows: Sequence[Row], *, round_idx: int) -> None:
        if not self._started:
            self._started = True
            earlier = [row for row in read_rows(self._path) if int(row["round"]) < round_idx]
            self._widen([*earlier, *rows])
            self._rewrite(earlier)
        elif self._widen(rows):
            self._rewrite(read_rows(self._path))
        with self._path.open("a", newline="", encoding="utf-8") as file:
            self._writer(file).writerows(rows)

    def replace(self, rows: Sequence[Row]) -> None:
        """Let the table hold these rows and no others."""
        self._widen(rows)
        self._rewrite(rows)

    def _widen(self, rows: Iterable[Row]) -> bool:
        new = dict.fromkeys(name for row in rows for name in row if name not in self._columns)
        self._columns += new
        return bool(new)

    def _rewrite(self, rows: Iterable[Row]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = self._writer(file)
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(self._path)

    def _writer(self, file: io.TextIOWrapper) -> csv.DictWriter:
        return csv.DictWriter(file, self._columns, lineterminator="\n")


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a table by column, values as text; none where there is no file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    # A process killed while it wrote leaves a last line without its end.
    return list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))
