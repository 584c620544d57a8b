"""Series of a CSV or Parquet file, one of each client, as windows for forecasting."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flfast.datamodules.examples import Examples
from flfast.datamodules.missing import refuse_missing
from flfast.datamodules.sources.table_files import Columns, read_table
from flfast.datamodules.sources.table_targets import listed
from flfast.datamodules.value_names import number_clients
from flfast.zoo.datamodules.sources.series_windows import WindowSource, windows_of


@dataclass(frozen=True, kw_only=True)
class Series(WindowSource):
    """Windows float32 [N, X, L]; see `windows_of`. Without `owner`, each column is a client."""

    path: str
    time: str | None
    owner: str | None
    values: list[str] | None
    targets: list[str] | None

    def load(self) -> Examples:
        """The windows of all series.

        Raises:
            ValueError: if columns are missing or hold no numbers, times are unsorted or uneven, or
                a series is too short or constant.
        """
        owner = self.owner
        columns = Columns(read_table(self.path, names=listed(owner)), self.path)
        for option in ("time", "owner", "values", "targets"):
            columns.require(listed(getattr(self, option)), option)
        chosen, predicted = self._chosen(columns)
        numbers = np.stack([columns.numbers(name) for name in chosen], axis=1)  # [rows, X]
        times = None if self.time is None else _times(columns, self.time)
        if owner is None:
            _check_times("of the file", times)
            apart = list(numbers.T[:, :, None])
            return windows_of(apart, chosen, ["value"], num_targets=1, cut=self)
        clients = number_clients(columns.as_names(owner), None, where=f"data.owner={owner}")
        places = [np.flatnonzero(clients.owner == k) for k in range(clients.owner.max() + 1)]
        called = clients.client_names or tuple(map(str, range(len(places))))
        for name, rows in zip(called, places, strict=True):
            _check_times(f"of {name}", None if times is None else times[rows])
        apart = [numbers[rows] for rows in places]
        return windows_of(apart, called, chosen, num_targets=len(predicted), cut=self)

    def _chosen(self, columns: Columns) -> tuple[list[str], list[str]]:
        """The columns that the model reads, predicted ones first; and the predicted ones."""
        chosen = self.values or columns.free({self.time, self.owner})
        if self.owner is None and self.targets is not None:
            raise ValueError(
                f"data.targets={list(self.targets)} without data.owner, where each column is a "
                "client; allowed: null, or data.owner=COLUMN"
            )
        predicted = list(chosen if self.targets is None else self.targets)
        chosen = [*predicted, *(name for name in chosen if name not in predicted)]
        if not chosen:
            raise ValueError(
                f"data.path={self.path} has no column of values beside time and owner"
            )
        return chosen, predicted


def _times(columns: Columns, name: str) -> np.ndarray:
    """Times [rows], numbers or datetime64; a text is read as ISO 8601."""
    found: list[Any] = columns.values(name)
    refuse_missing(f"data.time={name}", columns.missing(name))
    if isinstance(found[0], (int, float)):
        return columns.numbers(name)
    try:
        return np.array([str(value) for value in found], dtype="datetime64[us]")
    except ValueError as error:
        raise ValueError(
            f"data.time={name}: {error}; allowed: numbers, or times such as 2024-01-31T13:00"
        ) from None


def _check_times(whose: str, times: np.ndarray | None) -> None:
    """Refuse times [T] that do not rise by equal steps."""
    if times is None or len(times) < 2:
        return
    steps = np.diff(times)
    usual = np.median(steps.astype(np.float64))
    uneven = ~np.isclose(steps.astype(np.float64), usual, rtol=1e-6) | (usual <= 0)
    if uneven.any():
        first = int(uneven.argmax())
        raise ValueError(
            f"data.time: times {whose} do not rise by equal steps: {times[first + 1]} follows "
            f"{times[first]}; sort the rows and fill gaps, or use data.time=null, which takes "
            "rows in their order"
        )
