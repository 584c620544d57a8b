"""The definition of a missing value, for every source of data and every role of a column."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

log = logging.getLogger(__name__)

_SHOWN = 5

FIX = "fill them, or leave these rows out"
"""Advice to the user where no option keeps or drops rows with missing values."""

_DROP = "fill them, or set data.missing=drop to leave these rows out"
_MORE = {
    "data.categorical=": ", or data.missing=category to make them a category",
    "data.numeric=": ", or data.missing=mean or median to fill in that of training rows",
}


def missing_rows(values: Any) -> np.ndarray:
    """Rows of an array or a sequence [N, ...] that lack a value, bool [N].

    None, NaN, NaT, NA of pandas, masked entries, and strings that are empty or blank are missing.
    A row with several values lacks one if any of them is missing.
    """
    array = values if isinstance(values, np.ndarray) else as_objects(values)
    masked = np.ma.getmaskarray(array)
    array = np.ma.getdata(array)
    kind = array.dtype.kind
    if kind in "fc":
        found = np.isnan(array)
    elif kind in "mM":
        found = np.isnat(array)
    elif kind in "US":
        found = np.char.str_len(np.char.strip(array)) == 0
    elif kind == "O":
        flat = np.fromiter(map(_is_missing, array.flat), dtype=bool, count=array.size)
        found = flat.reshape(array.shape)
    else:
        found = np.zeros(array.shape, dtype=bool)
    found = found | masked
    rows: np.ndarray = found.any(axis=tuple(range(1, found.ndim)))
    return rows


def missing_owners(names: Any) -> np.ndarray:
    """Examples whose client is not named, bool [N]: as `missing_rows`, and -1 in any format."""
    found = missing_rows(names)
    array = np.ma.getdata(names if isinstance(names, np.ndarray) else as_objects(names))
    if array.dtype.kind in "if":
        return found | (array == -1)
    if array.dtype.kind in "OU":
        return found | np.array([str(name) == "-1" for name in array], dtype=bool)
    return found


def refuse_missing(where: str, missing: np.ndarray, *, advice: str = FIX) -> None:
    """Refuse missing values, bool [N]; the error names `where` and the first rows, and advises."""
    if missing.any():
        raise ValueError(
            f"{where}: {int(missing.sum())} of {len(missing)} values are missing, in "
            f"{rows_of(missing)}; {advice}"
        )


def complete_rows(
    lacking: Mapping[str, np.ndarray], missing: str, *, is_test: np.ndarray | None
) -> np.ndarray:
    """Rows to keep, bool [N]: all, or with `missing=drop` the complete ones.

    `lacking` has the rows that lack a value, bool [N], by key and column.

    Raises:
        ValueError: if a row lacks a value and is not dropped, or none is left for training.
    """
    if missing != "drop":
        for where, rows in lacking.items():
            more = (text for start, text in _MORE.items() if where.startswith(start))
            refuse_missing(where, rows, advice=_DROP + "".join(more))
    dropped: np.ndarray = np.any(list(lacking.values()), axis=0)
    if dropped[slice(None) if is_test is None else ~is_test].all():
        raise ValueError(
            "data.missing=drop leaves no row for training: each lacks a value of "
            f"{', '.join(where for where, rows in lacking.items() if rows.any())}; allowed: name "
            "fewer columns, or fill them"
        )
    if dropped.any():
        log.warning(
            "data.missing=drop leaves out %d of %d rows: %s",
            *(dropped.sum(), len(dropped), rows_of(dropped)),
        )
    return ~dropped


def rows_of(chosen: np.ndarray) -> str:
    """The first rows of a mask bool [N], in words, such as `rows 3, 17 and 4 more`."""
    rows = np.flatnonzero(chosen)
    listed = ", ".join(map(str, rows[:_SHOWN]))
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {listed}{more} (the first is 0)"


def as_objects(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """A sequence as an array of objects [N], so that numpy converts none of them."""
    return np.fromiter(values, dtype=object, count=len(values))


def _is_missing(value: Any) -> bool:
    if value is None or value is np.ma.masked:
        return True
    if isinstance(value, (str, bytes)):
        return not value.strip()
    try:
        return bool(value != value)  # noqa: PLR0124 - true of NaN and NaT only
    except TypeError:
        return True  # NA of pandas is neither equal nor unequal to anything
    except ValueError:
        return False  # an array
