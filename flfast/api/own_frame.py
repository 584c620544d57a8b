"""Reads DataFrames of a Python program; text as `data=table` reads it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flfast.config.errors import ConfigError
from flfast.datamodules.missing import missing_rows, refuse_missing
from flfast.datamodules.number_range import as_float32
from flfast.datamodules.preprocessing import Preprocessing, TableColumns
from flfast.datamodules.sources.source import RawInputs
from flfast.datamodules.sources.table_columns import raw_rows
from flfast.datamodules.sources.table_files import Columns, index_columns
from flfast.datamodules.value_names import names_of, warn_of_odd_names
from flfast.state.extras import import_extra
from flfast.state.messages import first_line
from flfast.tasks.names import TaskName


class Frames(NamedTuple):
    """What one DataFrame holds, or one for training and one for tests.

    Attributes:
        parts: of each DataFrame inputs, float32 [N, columns], targets [N], and clients [N] or
            None. The last columns are categories as numbers from 0.
        columns: what became of the columns that are inputs, and the name of the target.
        classes: names of the classes, by number; empty if the targets are numbers.
    """

    parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray | None]]
    columns: TableColumns
    classes: tuple[str, ...]


class _Column(NamedTuple):
    """A column of each frame, as numbers or as codes int64 [N], and names of codes."""

    numbers: Sequence[np.ndarray]
    names: Sequence[Any] = ()


def is_frame(data: Any) -> bool:
    """Whether this is a pandas DataFrame."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def read_frames(
    data: Any,
    test_data: Any,
    *,
    target: str | None,
    client: str | None,
    task: TaskName,
    kept: Preprocessing | None = None,
) -> Frames:
    """Numbers for all columns, the same ones for the same text in both; `data` names the columns.

    Text in the target of a classification is a class. Other text is read as numbers if all of it
    are numbers, and refused if it is mostly numbers, unless the column has the type `category`.
    With `kept`, of a trained model, codes are those of that model.

    Raises:
        ConfigError: if a column is not there, or holds neither numbers nor text.
        ValueError: if a value is missing, or too large for float32.
    """
    frames = _aligned(data, test_data, target, client)
    columns = list(frames["data"].columns)
    inputs = [name for name in columns if name not in {target, client}]
    known: dict[Any, Sequence[str | None]] = {}
    if kept is not None and kept.columns is not None:
        known = {**kept.columns.categories}
        inputs = _as_trained(inputs, kept.columns)
    if kept is not None and kept.classes:
        known[target] = kept.classes
    read = {name: _column(frames, name, target, task, known) for name in [*inputs, target]}
    coded = [name for name in inputs if read[name].names]
    ordered = [name for name in inputs if name not in coded] + coded
    parts = []
    for place, frame in enumerate(frames.values()):
        values = np.empty((len(frame), len(ordered)), np.float32)
        for number, name in enumerate(ordered):
            values[:, number] = read[name].numbers[place]
        clients = frame[client].to_numpy() if client in frame.columns else None
        parts.append((values, read[target].numbers[place], clients))
    columns_of = TableColumns(
        numeric=dict.fromkeys(str(name) for name in ordered if name not in coded),
        categories={str(name): tuple(read[name].names) for name in coded},
        targets={str(target): None},
    )
    return Frames(parts, columns_of, names_of(read[target].names))


def raw_frame(frame: Any, kept: TableColumns, *, key: str | None, owner: str | None) -> RawInputs:
    """Inputs of the rows of a DataFrame whose targets are not known, for a trained model.

    Raises:
        ValueError: as `raw_rows`.
    """
    if not len(frame):
        raise ValueError("data= has no rows")
    import_extra("pyarrow", extra="table")
    import pyarrow as pa

    arrays = {
        str(name): pa.array(frame[name].to_numpy(dtype=object), from_pandas=True)
        for name in frame.columns
        if str(name) in {*kept.names, key, owner}
    }
    owner = owner if kept.clients else None
    return raw_rows(
        Columns(pa.table(arrays), "data="), kept, key=key, owner=owner, missing="error"
    )


def _as_trained(inputs: Sequence[Any], kept: TableColumns) -> list[Any]:
    """The columns that a trained model reads, in its order.

    Raises:
        ConfigError: naming a column that is missing.
    """
    by_name = {str(name): name for name in inputs}
    if missing := [name for name in kept.names if name not in by_name]:
        raise ConfigError(
            f"data= has no column {missing[0]!r}, which the model reads; it has "
            f"{', '.join(by_name)}"
        )
    return [by_name[name] for name in kept.names]


def _aligned(data: Any, test_data: Any, target: Any, client: Any) -> dict[str, Any]:
    """DataFrames with the same inputs, and the target; a test set may lack clients."""
    frames = {"data": data} | ({} if test_data is None else {"test_data": test_data})
    used: Collection[Any] = {target, client}
    for key, frame in frames.items():
        if not is_frame(frame):
            kind = type(frame).__name__
            raise ConfigError(f"{key}= is of type {kind}; allowed: a DataFrame, as data=")
        if not frame.columns.is_unique:
            twice = frame.columns[frame.columns.duplicated()][0]
            raise ConfigError(f"{key}=: column {twice} is there twice; allowed: one of each name")
        frames[key] = frame.drop(columns=index_columns(f"{key}=", frame.columns, used))
        used = frames[key].columns
    columns = list(frames["data"].columns)
    for name, wanted in {"target": target, "client": client}.items():
        if wanted not in columns and (wanted is not None or name == "target"):
            shown = ", ".join(map(str, columns))
            raise ConfigError(f"{name}={wanted} with data= a DataFrame; allowed: one of {shown}")
    if odd := sorted(map(str, ({*columns} ^ {*used}) - {client})):
        raise ConfigError(f"test_data=: column {odd[0]} is in one DataFrame only; allowed: both")
    return frames


def _column(
    frames: Mapping[str, Any],
    name: Any,
    target: Any,
    task: TaskName,
    known: Mapping[Any, Sequence[str | None]],
) -> _Column:
    values = [frame[name] for frame in frames.values()]
    is_text = any(getattr(part.dtype, "kind", "O") not in "biuf" for part in values)
    for key, part in zip(frames, values, strict=True):
        missing = missing_rows(part.to_numpy(dtype=object)) if is_text else part.isna().to_numpy()
        advice = f"use {key}.dropna(subset=[{name!r}]), or {key}[{name!r}].fillna(...)"
        refuse_missing(f"{key}=: column {name}", missing, advice=advice)
        if not is_text and name != target:
            as_float32(f"{key}=: column {name}", part.to_numpy(dtype=np.float64))
    if not is_text:
        return _Column([part.to_numpy() for part in values])
    numbers, names = _read(values, name, target, task, known.get(name))
    return _Column(np.split(numbers, [len(values[0])]), names)


def _read(
    parts: Sequence[Any],
    name: Any,
    target: str | None,
    task: TaskName,
    known: Sequence[str | None] | None,
) -> tuple[np.ndarray, Sequence[Any]]:
    """A column with text as numbers, or as codes and their names; none for numbers."""
    try:
        import_extra("pyarrow", extra="table")
    except ValueError as error:
        raise ConfigError(f"data=: {error}") from None
    import pyarrow as pa

    whole = np.concatenate([part.to_numpy(dtype=object) for part in parts])
    is_category = str(parts[0].dtype) == "category"
    try:
        columns = Columns(pa.table({str(name): pa.array(whole, from_pandas=True)}), "data=")
        kind = columns.kind(str(name))
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        said = first_line(error).removeprefix(f"data=: column {name} ")
        raise ConfigError(f"data=: column {name}: {said}; allowed: numbers and text") from None
    is_number = kind == "float" and not is_category
    if name == target and (task != "classification" or is_number):
        return columns.numbers(str(name)), ()
    if kind == "text" and name != target and not is_category:
        advice = f"make it a column of categories: frame[{name!r}].astype('category')"
        columns.refuse_odd_numbers(str(name), advice)
    if kind == "text" or is_category or name == target:
        codes, values = columns.codes(str(name), known)
        warn_of_odd_names(f"data=: column {name}", values, codes)
        return codes, values
    return columns.numbers(str(name)), ()
