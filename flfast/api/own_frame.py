"""Text in a DataFrame becomes numbers, by the functions of `data=table`."""

from typing import Any, NamedTuple

import numpy as np

from flfast.config.errors import ConfigError
from flfast.datamodules.missing import missing_rows, refuse_missing
from flfast.datamodules.sources.table_files import Columns
from flfast.messages import first_line


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


def is_frame(data: Any) -> bool:
    """Whether this is a pandas DataFrame."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def coded_text(data: Any, test_data: Any, *, target: str | None, client: str | None) -> Coded:
    """DataFrames with numbers for text, the same ones in both; `data` names the columns.

    Text in the target is a class.

    Args:
        data: a DataFrame.
        test_data: another one with the same columns, or anything else.
        target: column of the targets.
        client: column of the clients, which may keep any names.

    Raises:
        ConfigError: if a column holds neither numbers nor text, or a text is missing.
    """
    texts = [name for name in data.columns if name != client and not _is_numeric(data[name])]
    if not texts or target not in data.columns:  # which the reader refuses
        return Coded(data, test_data)
    import pandas as pd

    frames = [data, test_data] if is_frame(test_data) else [data]
    for key, frame in zip(("data", "test_data"), frames, strict=False):
        for name in texts:
            missing = missing_rows(frame[name].to_numpy(dtype=object))
            refuse_missing_rows(f"{key}=: column {name}", missing)
    whole = pd.concat(frames, ignore_index=True)
    codes = _codes(whole[texts])
    for name, (numbers, _) in codes.items():
        whole[name] = numbers
    last = [name for name in (target, client) if name in whole.columns]
    inputs = [name for name in whole.columns if name not in last]
    ordered = sorted(inputs, key=lambda name: name in codes)  # stable: numbers come first
    whole = whole[[*ordered, *last]]
    classes = [] if target not in codes else codes[target][1]
    return Coded(
        whole[: len(data)],
        whole[len(data) :] if len(frames) > 1 else test_data,
        tuple(len(codes[name][1]) for name in ordered if name in codes),
        tuple(map(str, classes)),
    )


def refuse_missing_rows(where: str, missing: np.ndarray) -> None:
    """As `refuse_missing` of the sources, with the error of Python's users.

    Raises:
        ConfigError: if a row lacks a value, bool [N].
    """
    try:
        refuse_missing(where, missing)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _is_numeric(column: Any) -> bool:
    return getattr(column.dtype, "kind", "O") in "biuf"


def _codes(texts: Any) -> dict[Any, Any]:
    """(numbers, values that they stand for) of columns of text, by name."""
    from flfast.datamodules.sources.extras import import_extra

    try:
        import_extra("pyarrow", extra="table")
        import pyarrow as pa

        table = pa.Table.from_pandas(texts, preserve_index=False)
        columns = Columns(table, "data=")
        return {name: columns.codes(str(name)) for name in texts.columns}
    except (ValueError, TypeError) as error:  # errors of pyarrow are among them
        raise ConfigError(f"data=: {first_line(error)}; allowed: numbers and text") from None
