"""Reads tables from CSV and Parquet files, with pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flfast.datamodules.sources.extras import import_extra

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["integer", "float", "text"]


def read_table(path: str) -> pa.Table:
    """A table, whose types come from the file: pyarrow infers those of a CSV file.

    Args:
        path: ends in `.csv`, `.csv.gz` or `.parquet`. A CSV file has a header.

    Raises:
        ValueError: if the file is missing, damaged or empty, or has two columns of one name.
    """
    import_extra("pyarrow", extra="table")
    import pyarrow
    from pyarrow import csv, parquet

    file = Path(path).expanduser()
    try:
        if file.name.endswith((".csv", ".csv.gz")):
            table = csv.read_csv(file)
        elif file.name.endswith(".parquet"):
            table = parquet.read_table(file)
        else:
            raise ValueError("its name must end in .csv, .csv.gz or .parquet")
        names = table.column_names  # text that is no UTF-8 raises here
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise ValueError(f"data.path={path} cannot be read as a table: {error}") from None
    if not table.num_rows:
        raise ValueError(f"data.path={path} has no rows; columns: {', '.join(names)}")
    if len(set(names)) < table.num_columns:
        raise ValueError(f"data.path={path} has two columns of one name: {names}")
    return table


class Columns:
    """The columns of a table, by name.

    Args:
        table: as `read_table` returns it.
        path: of the file, for error messages.
    """

    def __init__(self, table: pa.Table, path: str) -> None:
        self._table, self._path = table, path
        self.names: list[str] = table.column_names

    def require(self, names: Sequence[str], option: str) -> None:
        """Check that columns exist.

        Raises:
            ValueError: if one is missing.
        """
        for name in names:
            if name not in self.names:
                raise ValueError(
                    f"data.{option}={name!r} is no column of {self._path}; allowed: "
                    f"{', '.join(self.names)}"
                )

    def kind(self, name: str) -> Kind:
        """What a column holds; truth values are integers.

        Raises:
            ValueError: if it holds neither numbers nor text.
        """
        from pyarrow import types

        found = self._table.schema.field(name).type
        found = found.value_type if types.is_dictionary(found) else found
        if types.is_floating(found) or types.is_decimal(found):
            return "float"
        if types.is_integer(found) or types.is_boolean(found):
            return "integer"
        if types.is_string(found) or types.is_large_string(found):
            return "text"
        raise ValueError(
            f"{self._path}: column {name} has the type {found}; allowed: numbers and text, or "
            "name the columns to use"
        )

    def numbers(self, name: str) -> np.ndarray:
        """A column as float64 [N].

        Raises:
            ValueError: if it is no column of numbers, or a number is missing or not finite.
        """
        if self.kind(name) == "text":
            first = self._table.column(name)[0].as_py()
            raise ValueError(f"{self._path}: column {name} holds text, such as {first!r}")
        column = self._table.column(name)
        if column.null_count:
            raise ValueError(
                f"{self._path}: column {name} lacks {column.null_count} of {len(column)} numbers; "
                "fill them, drop these rows, or make it categorical"
            )
        values: np.ndarray = np.array(column.to_pylist(), dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError(f"{self._path}: column {name} holds NaN or infinity")
        return values

    def codes(self, name: str) -> tuple[np.ndarray, list[Any]]:
        """A column as codes int64 [N], and the sorted values that they stand for.

        A missing value is a value of its own, the first one.
        """
        self.kind(name)
        values = self._table.column(name).to_pylist()
        found = set(values)
        ordered: list[Any] = [None] if None in found else []
        ordered += sorted(found - {None})
        numbers = {value: number for number, value in enumerate(ordered)}
        return np.array([numbers[value] for value in values], dtype=np.int64), ordered
