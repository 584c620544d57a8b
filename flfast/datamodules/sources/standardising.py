"""Standardises numeric columns by statistics of training examples."""

from collections.abc import Sequence

import numpy as np

# Standardised values become float32. Where the standard deviation is this many times the usual
# distance from the median, usual values differ by less than float32 can tell.
_MOST_SPREAD = 1 / np.finfo(np.float32).eps


def standardised(
    values: np.ndarray,
    *,
    is_training: np.ndarray,
    group: np.ndarray | None = None,
    names: Sequence[str],
) -> np.ndarray:
    """Columns with mean 0 and standard deviation 1 over training examples, float64 [N, D].

    Columns that are constant there become 0 there.

    Args:
        values: finite, [N, D].
        is_training: bool [N]; at least one.
        group: client of each example, int64 [N], each of whom uses statistics of its own; -1
            uses those of all. None: everyone uses those of all.
        names: of the columns, [D], for errors.

    Raises:
        ValueError: if a value is so large that the others would lose their digits in float32, or
            that it exceeds float32 itself; names column, row and value.
    """
    training = values[is_training]
    for column, own in enumerate(training.T):
        if (row := _outlier(own)) is not None:
            raise _refused(names[column], int(np.flatnonzero(is_training)[row]), own[row])
    result = _by_statistics_of(values, training)
    for client in [] if group is None else np.unique(group[group >= 0]):
        own = group == client
        result[own] = _by_statistics_of(values[own], values[own & is_training])
    beyond = ~(np.abs(result) <= np.finfo(np.float32).max)
    if beyond.any():
        row, column = map(int, np.argwhere(beyond)[0])
        raise _refused(names[column], row, values[row, column])
    return result


def _outlier(values: np.ndarray) -> int | None:
    """The row of a value that would take the digits of all others [n]; None if there is none."""
    values, _ = _scaled(values)
    distance = np.abs(values - np.median(values))
    differing = distance[distance > 0]
    if not len(differing) or values.std() <= _MOST_SPREAD * np.median(differing):
        return None
    return int(distance.argmax())


def _refused(name: str, row: int, value: float) -> ValueError:
    return ValueError(
        f"column {name}: the value {value:g} in row {row} (the first is 0) is so far from the "
        "others that they would lose nearly all digits once standardised; mend it, or leave the "
        "row out"
    )


def _scaled(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values below 1, and the power of two of each column that makes them the given ones.

    It changes no digit, and keeps squares within float64.
    """
    _, power = np.frexp(np.abs(values).max(axis=0))
    return np.ldexp(values, -power), power


def _by_statistics_of(values: np.ndarray, training: np.ndarray) -> np.ndarray:
    scaled, power = _scaled(training)
    spread = scaled.std(axis=0)
    # Rounding leaves a tiny spread in constant columns.
    constant = spread <= 1e-12 * np.abs(scaled).max(axis=0)
    mean, spread = np.ldexp(scaled.mean(axis=0), power), np.ldexp(spread, power)
    return (values - mean) / np.where(constant, 1.0, spread)
