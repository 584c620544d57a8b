"""Reads `metrics.csv` and `clients.csv` of a run, and refuses damaged ones. Torch-free."""

import io
import math
import re
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from flfast.output.results.columns import CLIENT_EVALUATION, COLUMNS
from flfast.output.results.history import Row
from flfast.output.results.table import parse_table, read_rounds, require_rounds
from flfast.state.regular_file import opener

_OF_NUMBERS = {
    *(column.partition("/")[0] for column in COLUMNS if not column.startswith("plan/")),
    *("attack", "monitor", "privacy"),
}
"""First words of the columns that hold numbers; `monitor/` and others come with an option."""

_NUMBER = re.compile(r"-?([0-9]+\.?[0-9]*(e[+-]?[0-9]+)?|inf|nan)", re.IGNORECASE)

_TAIL_BYTES = 16 * 2**20


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
    evaluated = [row for row in rows if any(row.get(column) for column in CLIENT_EVALUATION)]
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
