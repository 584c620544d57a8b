"""Columns of a DataFrame that are not of a numeric type, read as `data=table` reads them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flfast.config.errors import ConfigError, refused
from flfast.datamodules.missing import FIX, missing_rows, refuse_missing
from flfast.datamodules.sources.table_files import Columns
from flfast.datamodules.value_names import names_of, warn_of_odd_names
from flfast.state.extras import import_extra
from flfast.state.messages import first_line
from flfast.tasks.names import TaskName


class Coded(NamedTuple):
    """DataFrames of numbers.

    Attributes:
        data: numeric columns, then categories as numbers from 0, then target and client.
        test_data: the same, or what it was if it is no DataFrame.
        categories: number of categories of each column of categories.
        classes: names of the classes, by number; empty if the targets are numbers.
    """

    data: Any
    test_data: Any
    categories: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()


class _Column(NamedTuple):
    """A column of all frames as float64 or as codes int64 [N], and names of codes."""

    numbers: np.ndarray
    names: Sequence[Any]


def is_frame(data: Any) -> bool:
    """Whether this is a pandas DataFrame."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def coded_text(
    data: Any, test_data: Any, *, target: str | None, client: str | None, task: TaskName
) -> Coded:
    """DataFrames with numbers for text, the same ones in both; `data` names the columns.

    Text in the target of a classification is a class. Other text is read as numbers if all of it
    are numbers, and refused if it is mostly numbers, unless the column has the type `category`.

    Raises:
        ConfigError: if a column holds neither numbers nor text, or a text is missing.
    """
    others = {name: data[name].dtype for name in data.columns if name != client}
    texts = [name for name, kind in others.items() if getattr(kind, "kind", "O") not in "biuf"]
    if not texts or target not in data.columns:  # which the reader refuses
        return Coded(data, test_data)
    frames = [data, test_data] if is_frame(test_data) else [data]
    for key, frame in zip(("data", "test_data"), frames, strict=False):
        for name in texts:
            missing = missing_rows(frame[name].to_numpy(dtype=object))
            refuse_missing_column(key, name, missing)
    read = {name: _read(frames, name, target, task) for name in texts}
    last = [name for name in (target, client) if name in data.columns]
    inputs = [name for name in data.columns if name not in last]
    coded = [name for name in inputs if name in read and read[name].names]
    ordered = [name for name in inputs if name not in coded] + coded + last
    parts, start = [], 0
    for frame in frames:
        rows = slice(start, start := start + len(frame))
        numbers = {name: column.numbers[rows] for name, column in read.items()}
        part = frame.copy(deep=False)
        for name, values in numbers.items():
            part[name] = values
        parts.append(part[[name for name in ordered if name in part.columns]])
    return Coded(
        parts[0],
        parts[1] if len(parts) > 1 else test_data,
        tuple(len(read[name].names) for name in coded),
        names_of(read[target].names) if target in read else (),
    )


def refuse_missing_column(key: str, name: Any, missing: np.ndarray) -> None:
    """Refuse a column of a DataFrame with missing values, and say what pandas has for them.

    Raises:
        ConfigError: if a row lacks a value.
    """
    advice = f"use {key}.dropna(subset=[{name!r}]), or {key}[{name!r}].fillna(...)"
    refuse_missing_rows(f"{key}=: column {name}", missing, advice=advice)


def refuse_missing_rows(where: str, missing: np.ndarray, *, advice: str = FIX) -> None:
    """As `refuse_missing` of the sources, with the error of Python's users.

    Raises:
        ConfigError: if a row lacks a value, bool [N].
    """
    with refused():
        refuse_missing(where, missing, advice=advice)


def _read(frames: Sequence[Any], name: Any, target: str | None, task: TaskName) -> _Column:
    try:
        import_extra("pyarrow", extra="table")
    except ValueError as error:
        raise ConfigError(f"data=: {error}") from None
    import pyarrow as pa

    whole = np.concatenate([frame[name].to_numpy(dtype=object) for frame in frames])
    is_category = str(frames[0][name].dtype) == "category"
    try:
        columns = Columns(pa.table({str(name): pa.array(whole, from_pandas=True)}), "data=")
        kind = columns.kind(str(name))
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        said = first_line(error).removeprefix(f"data=: column {name} ")
        raise ConfigError(f"data=: column {name}: {said}; allowed: numbers and text") from None
    with refused():
        is_number = kind == "float" and not is_category
        if name == target and (task != "classification" or is_number):
            return _Column(columns.numbers(str(name)), [])
        if kind == "text" and name != target and not is_category:
            advice = f"make it a column of categories: frame[{name!r}].astype('category')"
            columns.refuse_odd_numbers(str(name), advice)
        if kind == "text" or is_category or name == target:
            codes, values = columns.codes(str(name))
            warn_of_odd_names(f"data=: column {name}", values, codes)
            return _Column(codes, values)
        return _Column(columns.numbers(str(name)), [])
