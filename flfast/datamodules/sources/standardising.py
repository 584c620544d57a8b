"""Standardises numeric columns by statistics of training examples."""

from collections.abc import Sequence

import numpy as np

from flfast.datamodules.number_range import LARGEST, far_off, refuse_outliers


def standardised(
    values: np.ndarray,
    *,
    is_training: np.ndarray,
    group: np.ndarray | None = None,
    names: Sequence[str],
) -> np.ndarray:
    """Columns [N, D] with mean 0 and standard deviation 1 over training examples, float64.

    Columns that are constant there become 0 there. Values are finite. With `group`, the client of
    each example, int64 [N], each client uses statistics of its own; -1 uses those of all.

    Raises:
        ValueError: if a value is so large that the others would lose their digits in float32, or
            that it exceeds float32 itself; names column, row and value.
    """
    training = values[is_training]
    columns = [f"column {name}" for name in names[: values.shape[1]]]
    refuse_outliers(training, names=columns, rows=np.flatnonzero(is_training))
    result = _by_statistics_of(values, training)
    for client in [] if group is None else np.unique(group[group >= 0]):
        own = group == client
        result[own] = _by_statistics_of(values[own], values[own & is_training])
    beyond = ~(np.abs(result) <= LARGEST)
    if beyond.any():
        row, column = map(int, np.argwhere(beyond)[0])
        raise far_off(columns[column], row, values[row, column])
    return result


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
