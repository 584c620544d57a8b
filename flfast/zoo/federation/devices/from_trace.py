"""Devices from a CSV file, such as measurements of real devices.

The file has a header, and a row for each client, in any order. Columns are the fields of `Devices`
and `client`; all of them are optional:

    client,per_example,down,up,available,begins
    0,0.004,1250000,250000,0.4,79200
    1,0.031,500000,inf,1,0

Without a column `client`, the first row is client 0, the second client 1, and so on. What has no
column is ideal: it costs no time, is always available, and never fails. A client without a row has
the device of a row that is drawn from the seed.
"""

from array import array
from typing import NamedTuple

import numpy as np

from flfast.federation.devices.device import DAY, DeviceModel, Devices
from flfast.state.randomness import uniforms
from flfast.zoo.state.csv_file import CsvFile, parse_integer, shortened

_MOST = 1e18


class _Column(NamedTuple):
    ideal: float
    least: float
    most: float
    allowed: str


_SECONDS = _Column(0.0, 0.0, _MOST, "a number >= 0 and <= 1e18")
_BANDWIDTH = _Column(np.inf, 1e-6, np.inf, "a number >= 1e-06, or inf")
_COLUMNS = {
    "fixed": _SECONDS,
    "per_example": _SECONDS,
    "down": _BANDWIDTH,
    "up": _BANDWIDTH,
    "available": _Column(1.0, 0.001, 1.0, "a number in [0.001, 1]"),
    "begins": _Column(0.0, 0.0, float(np.nextafter(DAY, 0)), "a number in [0, 86400)"),
    "hazard": _SECONDS,
}


def from_trace(*, path: str) -> DeviceModel:
    """Device model with the devices in a file; the file is read once.

    Raises:
        ValueError: with file, line and what is allowed, if the file cannot be read.
    """
    listed, known = _read(CsvFile("devices.path", path))
    num_rows = len(listed)

    def devices(clients: np.ndarray, *, seed: int) -> Devices:
        places = np.minimum(np.searchsorted(listed, clients), num_rows - 1)
        drawn = uniforms(seed, "device row", clients) * num_rows
        rows = np.where(listed[places] == clients, places, drawn.astype(np.int64))
        return Devices(*(field[rows] for field in known))

    return devices


def _read(file: CsvFile) -> tuple[np.ndarray, Devices]:
    """Clients in ascending order, int64 [N], and their devices."""
    lines = file.lines()
    line, header = next(lines)
    _check_header(file.where(line), header)
    numbers = array("q")  # lines; not a list, since there may be millions
    clients = array("q")
    values = {name: array("d") for name in header if name in _COLUMNS}
    for line, row in lines:
        where = file.where(line)
        numbers.append(line)
        for name, text in zip(header, row, strict=True):
            if name == "client":
                clients.append(parse_integer(where, name, text))
            else:
                values[name].append(_number(where, name, text))
    if not numbers:
        raise ValueError(f"{file.where(line)}: is the last; allowed: a row or more below it")
    ids = np.array(clients if "client" in header else range(len(numbers)), dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    _check_unique(file, ids[order], np.array(numbers)[order])
    fields = [
        np.array(values[name])[order] if name in values else np.full(len(ids), column.ideal)
        for name, column in _COLUMNS.items()
    ]
    return ids[order], Devices(*fields)


def _check_header(where: str, header: list[str]) -> None:
    for column in header:
        if column != "client" and column not in _COLUMNS:
            raise ValueError(
                f"{where}: has a column {shortened(column)}; allowed: a header with some of the "
                f"columns client, {', '.join(_COLUMNS)}"
            )
        if header.count(column) > 1:
            raise ValueError(f"{where}: has {header.count(column)} columns {column}; allowed: one")


def _check_unique(file: CsvFile, ids: np.ndarray, lines: np.ndarray) -> None:
    again = np.flatnonzero(ids[1:] == ids[:-1])
    if len(again):
        first = again[0]
        raise ValueError(
            f"{file.where(lines[first + 1])}: client={ids[first]} is already in line "
            f"{lines[first]}; allowed: a row for each client"
        )


def _number(where: str, name: str, text: str) -> float:
    column = _COLUMNS[name]
    try:
        # Python's float also reads 1_000 and digits of other scripts.
        value = float(text) if text.isascii() and "_" not in text else np.nan
    except ValueError:
        value = np.nan
    if not column.least <= value <= column.most:
        raise ValueError(f"{where}: {name}={shortened(text)}; allowed: {column.allowed}")
    return value
