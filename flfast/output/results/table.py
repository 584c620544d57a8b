"""CSV tables with rows per round, which survive kills, resumes and new columns. Torch-free.

Those of strangers are read, too: damaged ones are refused.
"""

import csv
import io
import logging
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any

from flfast.output.results.columns import COLUMNS, is_metric
from flfast.output.results.history import Row
from flfast.state.messages import first_line, printable
from flfast.state.regular_file import opener, read_file, reading

log = logging.getLogger(__name__)

_ROUND = re.compile("[0-9]{1,9}")

_OF_NUMBERS = {
    *(column.partition("/")[0] for column in COLUMNS if not column.startswith("plan/")),
    *("attack", "model", "monitor", "privacy", "topology"),
}
"""First words of the columns that hold numbers; `monitor/` and others come with an option."""

_NUMBER = re.compile(r"-?([0-9]+\.?[0-9]*(e[+-]?[0-9]+)?|inf|nan)", re.IGNORECASE)
_TAIL_BYTES = 16 * 2**20


class RoundTable:
    """A CSV file to which rows are appended round by round; every row has a column `round`.

    Rows of an earlier process are kept up to the first round that this one appends. A run that
    is killed and resumed therefore writes the same file as one that was never killed.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._path = path
        self._columns = list(columns)
        self._started = False
        self._unwritten: list[Row] = []

    def append(self, rows: Sequence[Row], *, round_idx: int) -> None:
        """Write the rows of one round to the disk; new columns are added at the end.

        If the disk refuses, a warning is logged and the rows are written with the next round's.
        """
        unwritten = [*self._unwritten, *rows]
        first = int(unwritten[0]["round"]) if self._unwritten else round_idx
        try:
            self._write(unwritten, round_idx=first)
        except OSError as error:
            if not self._unwritten:
                log.warning("%s: %s; training continues", self._path, error.strerror)
            # Some rows may be half written: the next call must rewrite the file.
            self._unwritten, self._started = unwritten, False
        else:
            self._unwritten = []

    def _write(self, rows: Sequence[Row], *, round_idx: int) -> None:
        if not self._started:
            self._started = True
            earlier = self._earlier(round_idx - 1) if round_idx > 0 else []
            self._add_columns([*earlier, *rows])
            self._rewrite(earlier)
        elif self._add_columns(rows):
            self._rewrite(read_rows(self._path))
        with open(self._path, "a", newline="", encoding="utf-8", opener=opener) as file:
            self._writer(file).writerows(rows)

    def _earlier(self, last: int) -> list[dict[str, str]]:
        try:
            return read_rounds(self._path, last)
        except ValueError as error:
            log.warning("%s; its rows of rounds up to %d are lost", first_line(error), last)
            return []

    def replace(self, rows: Sequence[Row]) -> None:
        """Replace the contents of the table."""
        self._add_columns(rows)
        self._rewrite(rows)

    def _add_columns(self, rows: Iterable[Row]) -> bool:
        known = {*self._columns}
        new = [*dict.fromkeys(name for row in rows for name in row if name not in known)]
        places = [n for n, c in enumerate(self._columns, 1) if is_metric(c) or c == "train/loss"]
        at = max(places, default=0)
        self._columns[at:at] = [c for c in new if is_metric(c) or c.startswith("train/")]
        self._columns += [name for name in new if name not in self._columns]
        return bool(new)

    def _rewrite(self, rows: Iterable[Row]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        with open(temporary, "w", newline="", encoding="utf-8", opener=opener) as file:
            writer = self._writer(file)
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(self._path)

    def _writer(self, file: io.TextIOWrapper) -> csv.DictWriter:
        # `_add_columns` has checked the rows; the writer would make a set of columns for each.
        return csv.DictWriter(file, self._columns, extrasaction="ignore", lineterminator="\n")


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table; an end of a line is one character."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(chain([header], rows))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a table, values as text without control characters; empty if there is no file.

    Raises:
        OSError: with the path, if it is no file.
        ValueError: with the path, if the file is no table.
    """
    return parse_table(read_file(path), path) if path.exists() else []


def parse_table(content: bytes, path: Path, *needed: str) -> list[dict[str, str]]:
    """Rows of a table, values as text without control characters.

    Windows line ends and a byte-order mark are read as well: spreadsheets write them. A process
    that is killed while writing leaves an incomplete last line: it is left out with a warning.
    `path` is for messages, and `needed` are columns that there must be.

    Raises:
        ValueError: with the path, if one of them is missing, if two columns have one name, or
            if a row has more or fewer cells than there are columns.
    """
    with reading(f"{path} is no table", csv.Error):
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
        whole, _, torn = text.rpartition("\n")
        lines = [line for line in csv.reader(io.StringIO(printable(whole)), strict=True) if line]
    if not lines:
        raise ValueError(f"{path} is no table: it has no line of columns")
    if torn:
        log.warning("%s: its last line is incomplete and is left out", path)
    columns, *rows = lines
    missing = [name for name in needed if name not in columns]
    if missing:
        raise ValueError(f"{path} is no table: it has no column {missing[0]}")
    # `comparison.csv` of a sweep over `rounds` has two such columns, and needs none.
    twice = next((name for name in columns if needed and columns.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{path} is no table: two columns are called {twice!r}")
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(
                f"{path} is no table: the row that begins with {row[0][:40]!r} has {len(row)} "
                f"cells; allowed: {len(columns)}, one a column"
            )
    return [dict(zip(columns, row, strict=True)) for row in rows]


def read_curves(
    path: Path, keys: Sequence[str], values: Sequence[str]
) -> list[tuple[list[str], list[list[float]]]]:
    """The cells of `keys` and the columns of numbers `values` of a file.

    Consecutive rows with the same cells are one entry.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it lacks a column, or a value is no finite number.
    """
    found = []
    rows = parse_table(read_file(path), path, *keys, *values)
    for about, own in groupby(rows, key=lambda row: [row[name] for name in keys]):
        numbers = [[float(row[name]) for name in values] for row in own]
        if not all(map(math.isfinite, chain(*numbers))):
            raise ValueError(f"{path} has a number that is not finite")
        found.append((about, [[*column] for column in zip(*numbers, strict=True)]))
    return found


def iterate_rows(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a table that may not fit in memory, values as text; a torn last line is dropped."""
    with open(path, newline="", encoding="utf-8", opener=opener) as file:
        yield from csv.DictReader(line for line in file if line.endswith("\n"))


def read_rounds(path: Path, last: int) -> list[dict[str, str]]:
    """Rows of a table up to a round; see `read_rows`.

    Raises:
        ValueError: with the path, if the file is no table, or a row is of no round.
    """
    rows = parse_table(read_file(path), path, "round") if path.exists() else []
    require_rounds(rows, path)
    return [row for row in rows if int(row["round"]) <= last]


def require_rounds(rows: Iterable[Row], path: Path) -> None:
    """Refuse rows without the number of a round.

    Raises:
        ValueError: with the path, if there is one.
    """
    if not all(_ROUND.fullmatch(row.get("round", "")) for row in rows):
        raise ValueError(f"{path} is no table: a row is of no round")


def read_history(path: Path) -> list[Row]:
    """Rows of a run's `metrics.csv`, values as text; empty if there is no file.

    Raises:
        OSError: with the path, if it is no file.
        ValueError: with the path, if it is no table, a round is missing or twice, or a cell of
            numbers is none.
    """
    rows = read_rounds(path, sys.maxsize)
    rounds = [int(row["round"]) for row in rows]
    for before, after in pairwise(rounds):
        if after != before + 1:
            raise ValueError(
                f"{path} is no table of a run: after round {before} comes round {after}; "
                f"allowed: {before + 1}"
            )
    _require_numbers(rows, path)
    return [*rows]


def read_clients(path: Path) -> list[Row]:
    """Rows of `clients.csv` of the last round in which clients were evaluated, as text.

    Only the last 16 MiB of the file are read. The list is empty if there is no such round.

    Raises:
        OSError: with the path, if it cannot be read, or is no file.
        ValueError: with the path, if it is no table, a row is of no client, a client is there
            twice, or a cell of numbers is none.
    """
    with open(path, "rb", opener=opener) as file:
        head = file.readline(2**20)
        size = file.seek(0, io.SEEK_END)
        start = file.seek(max(len(head), size - _TAIL_BYTES))
        tail = file.read()
    if start > len(head):
        tail = tail[tail.find(b"\n") + 1 :]
    rows = parse_table(head + tail, path, "round", "client_id")
    require_rounds(rows, path)
    if not all(re.fullmatch("[0-9]{1,18}", row.get("client_id", "")) for row in rows):
        raise ValueError(f"{path} is no table of clients: a row is of no client")
    _require_numbers(rows, path)
    evaluated = [row for row in rows if any(row[name] and is_metric(name) for name in row)]
    last = max((int(row["round"]) for row in evaluated), default=-1)
    shown = [row for row in evaluated if int(row["round"]) == last]
    if len({int(row["client_id"]) for row in shown}) < len(shown):
        raise ValueError(f"{path} is no table of clients: round {last} has a client twice")
    return [*shown]


def _require_numbers(rows: Iterable[Row], path: Path) -> None:
    for row in rows:
        for column, cell in row.items():
            if cell and column.partition("/")[0] in _OF_NUMBERS and not _is_number(cell):
                raise ValueError(f"{path} is no table of numbers: {column}={cell[:40]}")


def _is_number(cell: str) -> bool:
    """Whether a run may have written the cell; a number too large for a float it did not."""
    if not _NUMBER.fullmatch(cell):
        return False
    return "n" in cell.lower() or math.isfinite(float(cell))
