"""Missing values in the columns of a dataset of the library `datasets`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from flfast.datamodules.missing import complete_rows, missing_rows
from flfast.datamodules.sources.hf_columns import column_kind, read_numbers
from flfast.datamodules.sources.natural_clients import unowned
from flfast.datamodules.sources.table_files import Columns

if TYPE_CHECKING:
    from datasets import Dataset

_ADVICE = "fill them, or set data.missing=drop to leave these rows out"


class HfRows(NamedTuple):
    """Rows for training, `num_train`, followed by those for testing."""

    data: Dataset
    num_train: int

    @property
    def is_test(self) -> np.ndarray | None:
        """Rows of the split for testing, bool [N]; None if there is none."""
        num = len(self.data)
        return None if self.num_train == num else np.arange(num) >= self.num_train


def complete_hf_rows(
    rows: HfRows,
    columns: Columns,
    *,
    inputs: list[str],
    targets: list[str],
    owner: str | None,
    missing: Literal["error", "drop"],
) -> HfRows:
    """The rows that lack no value of the columns in use; `missing` is `data.missing`.

    A text may be empty. A class of -1 is a missing one.

    Raises:
        ValueError: if rows are refused, or none is left for training.
    """
    found = {f"data.inputs={name}": _missing_inputs(rows.data, name) for name in inputs}
    for name in targets:
        found[f"data.targets={name}"] = _missing_targets(rows.data, columns, name)
    if owner is not None:
        found[f"data.owner={owner}"] = unowned(columns.values(owner), rows.is_test)
    kept = complete_rows(found, missing, is_test=rows.is_test, advice=_ADVICE)
    if kept.all():
        return rows
    data = rows.data.select(np.flatnonzero(kept)).flatten_indices()
    return HfRows(data, int(kept[: rows.num_train].sum()))


def _missing_inputs(data: Dataset, name: str) -> np.ndarray:
    missing: np.ndarray = np.array(data.data.table.column(name).is_null())
    if column_kind(data, name) == "numbers" and not missing.all():
        given = np.flatnonzero(~missing)
        part = data if len(given) == len(data) else data.select(given)
        missing[given] = missing_rows(read_numbers(part, name, "inputs"))
    return missing


def _missing_targets(data: Dataset, columns: Columns, name: str) -> np.ndarray:
    from datasets import ClassLabel

    missing = columns.missing(name)
    if isinstance(data.features[name], ClassLabel):
        return missing | np.array([value == -1 for value in columns.values(name)], dtype=bool)
    return missing
