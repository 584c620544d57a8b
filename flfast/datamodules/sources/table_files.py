"""Reads tables from CSV and Parquet files, with pyarrow."""

from __future__ import annotations

import io
import logging
import re
import zlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flfast.datamodules.bounds import check_parquet, open_gzip
from flfast.datamodules.missing import as_objects, missing_rows, refuse_missing, rows_of
from flfast.datamodules.sources.csv_quotes import strict_rows
from flfast.datamodules.sources.number_like import as_numbers, odd_ones
from flfast.datamodules.value_names import number_names
from flfast.state.extras import import_extra
from flfast.state.regular_file import reading, require_file

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

Kind = Literal["integer", "float", "text"]

_INDEX = re.compile(r"index 0|Unnamed: 0(\.[0-9]+)*|__index_level_[0-9]+__")
"""Columns of an index without a name: the first one if it has no name, and those of pandas."""


def read_table(path: str, *, names: Sequence[str] = (), key: str = "data.path") -> pa.Table:
    """A `.csv`, `.csv.gz` or `.parquet` file; pyarrow infers the types of a CSV file.

    In a CSV file, the columns `names` are text, since `1.1` and `1.10` are two names. It has a
    header. Empty and blank cells and words such as NA, NaN and null are missing values. Errors
    name `key`.

    Raises:
        ValueError: if the file is missing, damaged or empty, has two columns of one name or a
            stray quote, or is larger unpacked than its bound.
    """
    import_extra("pyarrow", extra="table")
    import pyarrow
    from pyarrow import parquet

    file = Path(path).expanduser()
    further = EOFError, zlib.error, pyarrow.ArrowException
    with reading(f"{key}={path} cannot be read as a table", *further):
        if file.name.endswith((".csv", ".csv.gz")):
            check_csv(file)
            table = _read_csv(file, names)
        elif file.name.endswith(".parquet"):
            check_parquet(file)
            table = parquet.read_table(file)
        else:
            raise ValueError("its name must end in .csv, .csv.gz or .parquet")
        names = table.column_names  # text that is no UTF-8 raises here
    if not table.num_rows:
        raise ValueError(f"{key}={path} has no rows; columns: {', '.join(names)}")
    if len(set(names)) < table.num_columns:
        raise ValueError(f"{key}={path} has two columns of one name: {names}")
    return table


def _read_csv(path: Path, names: Sequence[str]) -> pa.Table:
    from pyarrow import csv, string

    texts = dict.fromkeys(names, string())
    parsing = csv.ParseOptions(newlines_in_values=True)
    converting = csv.ConvertOptions(strings_can_be_null=True, column_types=texts)
    return csv.read_csv(path, parse_options=parsing, convert_options=converting)


def check_csv(path: Path, *, free: int | None = None) -> None:
    """Check the quotes of a CSV file, which may be compressed by gzip, and its unpacked size.

    Raises:
        ValueError: if there is a stray quote, the text is not UTF-8, or it is too large.
        OSError: if the file cannot be read.
    """
    require_file(path)
    packed = path.name.endswith(".gz")
    with (
        open_gzip(path, free=free) if packed else path.open("rb") as stream,
        io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as lines,
    ):
        for _ in strict_rows(lines):
            pass


def index_columns(where: str, names: Iterable[Any], used: Collection[Any]) -> set[Any]:
    """The columns that pandas writes of an index without a name, unless they are in use."""
    named = {name for k, name in enumerate(names) if _INDEX.fullmatch(str(name) or f"index {k}")}
    if found := named.difference(used):
        which = ", ".join(name or "the first column, without a name," for name in sorted(found))
        how = "to use it, name it in an option or rename it"
        log.warning("%s: %s is the index of a DataFrame and no input; %s", where, which, how)
    return found


class Columns:
    """The columns of a table, by name; errors name its file.

    Attributes:
        path: of the file, or what the table is in words.
        names: of the columns.
        num_rows: N.
    """

    def __init__(self, table: pa.Table, path: str) -> None:
        self._table, self.path = table, path
        self._numbers: dict[str, pa.ChunkedArray | None] = {}
        self._codes: dict[str, tuple[np.ndarray, Sequence[str | None]]] = {}
        self.names: list[str] = table.column_names
        self.num_rows: int = table.num_rows

    def kept(self, rows: np.ndarray) -> Columns:
        """The same columns with some of the rows, bool [N]."""
        return Columns(self._table.filter(rows), self.path)

    def require(self, names: Sequence[str], option: str) -> None:
        """Check that columns exist, each named once."""
        for place, name in enumerate(names):
            if name not in self.names:
                raise ValueError(
                    f"data.{option}={name!r} is no column of {self.path}; allowed: "
                    f"{', '.join(self.names)}"
                )
            if name in names[:place]:
                raise ValueError(f"data.{option} names {name!r} twice; allowed: once")

    def free(self, used: Collection[str | None]) -> list[str]:
        """The columns that are not in use, without the index of a DataFrame."""
        left_out = {*used, *index_columns(self.path, self.names, used)}
        return [name for name in self.names if name not in left_out]

    def values(self, name: str) -> list[Any]:
        """A column as Python objects, [N]; None where nothing is."""
        found: list[Any] = self._table.column(name).to_pylist()
        return found

    def as_names(self, name: str) -> np.ndarray:
        """A column of names, numbers or texts, [N]; None or NaN where nothing is."""
        from pyarrow import types

        self.kind(name)  # refuses lists and dates
        column = self._column(name)
        as_stored = types.is_floating(column.type)  # Python shows more digits of float32
        found: np.ndarray = column.to_numpy() if as_stored else as_objects(column.to_pylist())
        return found

    def missing(self, name: str) -> np.ndarray:
        """Rows that lack a value of a column, bool [N]."""
        if (numbers := self._as_numbers(name)) is not None:
            return np.asarray(numbers.is_null(nan_is_null=True))
        return missing_rows(self._column(name).to_pylist())

    def refuse_odd_numbers(self, name: str, advice: str) -> None:
        """Refuse a column of text that is mostly numbers; advice says how to allow it."""
        if self.kind(name) != "text":
            return
        values = self.values(name)
        odd = odd_ones(values)
        if odd.any():
            shown = ", ".join(dict.fromkeys(repr(values[row]) for row in np.flatnonzero(odd)[:3]))
            raise ValueError(
                f"{self.path}: column {name} looks like numbers, but holds {shown} in "
                f"{rows_of(odd)}; mend these values, or {advice}"
            )

    def kind(self, name: str) -> Kind:
        """Kind of the values in a column; truth values are integers.

        A column of text holds numbers if all of its texts that are not blank are numbers.

        Raises:
            ValueError: if it holds neither numbers nor text.
        """
        from pyarrow import types

        numbers = self._as_numbers(name)
        found = (self._column(name) if numbers is None else numbers).type
        if types.is_integer(found) or types.is_boolean(found):
            return "integer"
        if _is_number(found):
            return "float"
        if _is_text(found):
            return "text"
        raise ValueError(
            f"{self.path}: column {name} has the type {found}; allowed: numbers and text, or "
            "name the columns to use"
        )

    def numbers(self, name: str, fill: float | None = None) -> np.ndarray:
        """A column as float64 [N]; `fill` replaces missing numbers.

        Raises:
            ValueError: if it is no column of numbers, or one is not finite, or missing without a
                `fill`.
        """
        if self.kind(name) == "text":
            first = self._table.column(name)[0].as_py()
            raise ValueError(f"{self.path}: column {name} holds text, such as {first!r}")
        missing = self.missing(name)
        if fill is None:
            refuse_missing(f"{self.path}: column {name}", missing)
        values = self.numbers_or_nan(name)
        assert values is not None
        if not (finite := np.isfinite(values) | missing).all():
            raise ValueError(f"{self.path}: column {name} holds infinity in {rows_of(~finite)}")
        return values if fill is None else np.where(missing, fill, values)

    def numbers_or_nan(self, name: str) -> np.ndarray | None:
        """A column as float64 [N], NaN where a number is missing; None if it holds no numbers."""
        found = self._as_numbers(name)
        return None if found is None else found.cast("float64").to_numpy()

    def codes(
        self, name: str, known: Sequence[str | None] | None = None
    ) -> tuple[np.ndarray, Sequence[str | None]]:
        """A column as codes int64 [N], and the names that they stand for.

        These are the `known` ones, or else those of the column, sorted. A missing value is a name
        of its own, the first one.

        Raises:
            ValueError: if a value is not known; names it and its rows.
        """
        if name not in self._codes:
            self._codes[name] = self._coded(name)
        codes, names = self._codes[name]
        if known is None:
            return codes, names
        place = {text: number for number, text in enumerate(known)}
        places = np.array([place.get(text, -1) for text in names], dtype=np.int64)
        if (places < 0).any():
            strange = [text for text, number in zip(names, places, strict=True) if number < 0]
            shown = ", ".join("nothing" if text is None else repr(text) for text in strange[:3])
            more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
            raise ValueError(
                f"{self.path}: column {name} holds {shown}{more} in "
                f"{rows_of(places[codes] < 0)}, which the model has not seen; allowed: "
                f"{', '.join(map(str, [*known][:20]))}{', ...' if len(known) > 20 else ''}"
            )
        return places[codes], known

    def _coded(self, name: str) -> tuple[np.ndarray, Sequence[str | None]]:
        values = self.as_names(name)
        missing = missing_rows(values)
        ordered, numbers = number_names(f"{self.path}: column {name}", values[~missing])
        codes: np.ndarray = np.zeros(len(values), dtype=np.int64)
        codes[~missing] = numbers + int(missing.any())
        return codes, [None, *ordered] if missing.any() else ordered

    def _as_numbers(self, name: str) -> pa.ChunkedArray | None:
        """A column of numbers, or of text that holds only numbers; None if it is neither."""
        if name not in self._numbers:
            column = self._column(name)
            is_text = _is_text(self._table.column(name).type)  # stored by no dictionary
            found = as_numbers(column) if is_text else None
            self._numbers[name] = column if _is_number(column.type) else found
        return self._numbers[name]

    def _column(self, name: str) -> pa.ChunkedArray:
        """A column, without the dictionary that it may be stored by."""
        from pyarrow import types

        column = self._table.column(name)
        is_coded = types.is_dictionary(column.type)
        return column.cast(column.type.value_type) if is_coded else column


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_string(kind) or types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    from pyarrow import types

    tests = (types.is_integer, types.is_boolean, types.is_floating, types.is_decimal)
    return any(test(kind) for test in tests)
