"""Numbers that training cannot use: not finite in float32, or so large that all others vanish."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LARGEST = float(np.finfo(np.float32).max)
"""Largest number of float32, the type of inputs and of targets that are numbers."""

_CHECKED_BYTES = 2**26

# Standardised values become float32. Where the standard deviation is this many times the usual
# distance from the median, usual values differ by less than float32 can tell.
_MOST_SPREAD = 1 / np.finfo(np.float32).eps

_ROUNDING = 64 * np.finfo(np.float64).eps  # of computed values that should be equal


def as_float32(where: str, values: np.ndarray) -> np.ndarray:
    """Numbers [N, ...] as float32; NaN and infinity stay what they are.

    Raises:
        ValueError: if a finite number is infinite in float32; names the first row and its value.
    """
    values = np.asarray(values)
    if values.dtype.kind == "f" and values.dtype.itemsize > 4:
        beyond = np.isfinite(values) & (np.abs(values) > LARGEST)
        if beyond.any():
            first = tuple(np.argwhere(beyond)[0])
            raise ValueError(
                f"{where}: {beyond_float32(float(values[first]))} in row {first[0]} (the first is "
                "0); mend it, or leave the row out"
            )
    return values.astype(np.float32)


def regression_targets(where: str, values: np.ndarray) -> np.ndarray:
    """Numbers to predict, [N] or [N, C], as float32 [N, C]; NaN and infinity stay what they are.

    Raises:
        ValueError: if a finite number is infinite in float32, or so far from all others of its
            column that they would lose their digits; names the row and the value.
    """
    numbers = as_float32(where, values)
    numbers = numbers[:, None] if numbers.ndim == 1 else numbers
    columns = range(numbers.shape[1])
    names = [where if len(columns) == 1 else f"{where}: column {column}" for column in columns]
    if numbers.ndim == 2 and len(numbers):
        refuse_outliers(numbers, names=names, rows=np.arange(len(numbers)))
    return numbers


def beyond_float32(value: float) -> str:
    """A number that is too large, in words."""
    return f"the value {value:g} exceeds float32 (up to {LARGEST:.1e})"


def unusable_number(values: Tensor | np.ndarray) -> str | None:
    """The first number that is not finite in float32, in words; None if there is none."""
    if isinstance(values, np.ndarray):
        values = torch.from_numpy(values.astype(np.float64 if values.dtype.kind == "f" else bool))
    if not values.is_floating_point() or not (wrong := _unusable(values)).any():
        return None
    value = float(values[wrong][0])
    return beyond_float32(value) if np.isfinite(value) else "NaN or infinity"


def check_finite(inputs: Tensor) -> None:
    """Check that inputs [N, ...], perhaps mapped from a large file, are finite in float32.

    Raises:
        ValueError: naming the first example, and its value if it is finite in its own type.
    """
    num, first, value = 0, -1, 0.0
    start = 0
    for part in inputs.split(max(_CHECKED_BYTES * len(inputs) // max(inputs.nbytes, 1), 1)):
        if part.numel() and not all(abs(float(bound)) <= LARGEST for bound in part.aminmax()):
            flat = part.flatten(start_dim=1)
            wrong = _unusable(flat)  # [rows of the part, numbers]
            broken = wrong.any(dim=1)
            if not num:
                row = int(broken.nonzero()[0])
                first, value = start + row, float(flat[row][wrong[row]][0])
            num += int(broken.sum())
        start += len(part)
    if num and np.isfinite(value):
        raise ValueError(
            f"inputs of {num} examples are too large; the first is example {first}: "
            f"{beyond_float32(value)}; mend them, or leave these examples out"
        )
    if num:
        raise ValueError(
            f"inputs of {num} examples contain NaN or infinity; the first is example {first}"
        )


def outlier(values: np.ndarray) -> int | None:
    """The row of a value so far off that all others lose their digits; None without one.

    If some of the values [n] are not finite, there is no outlier.
    """
    if not np.isfinite(values).all():
        return None
    _, power = np.frexp(np.abs(values).max())
    values = np.ldexp(values.astype(np.float64), -power)  # changes no digit; squares stay finite
    distance = np.abs(values - np.median(values))
    differing = distance[distance > 0]
    if not len(differing) or values.std() <= _MOST_SPREAD * np.median(differing):
        return None
    return int(distance.argmax())


def refuse_outliers(values: np.ndarray, *, names: Sequence[str], rows: np.ndarray) -> None:
    """Refuse a number that is so far from all others of its column that they would lose digits.

    Values are [n, D]; the error says names [D] of columns and numbers [n] of rows.
    """
    for name, own in zip(names, values.T, strict=True):
        if (place := outlier(own)) is not None:
            raise far_off(name, int(rows[place]), own[place])


def far_off(name: str, row: int, value: float) -> ValueError:
    """The error about an outlier."""
    return ValueError(
        f"{name}: the value {value:g} in row {row} (the first is 0) is so far from the "
        "others that they would lose nearly all digits once standardised; mend it, or leave the "
        "row out"
    )


def _unusable(values: Tensor) -> Tensor:
    """Numbers that are not finite in float32, bool like the values."""
    return ~(values.abs().double() <= LARGEST)  # a type of 16 bits would round the bound


class Scales(NamedTuple):
    """Means and standard deviations of D columns.

    Attributes:
        mean: [D], float64.
        deviation: [D], float64, > 0.
    """

    mean: np.ndarray
    deviation: np.ndarray


ALL = -1
"""The group of all examples, and of those of no client."""


def fitted_scales(
    values: np.ndarray,
    *,
    is_training: np.ndarray,
    group: np.ndarray | None = None,
    names: Sequence[str],
) -> dict[int, Scales]:
    """Scales by which training rows of [N, D] get mean 0 and standard deviation 1, by group.

    Columns that are constant become 0. Values are finite. `ALL` is the scale of all training rows;
    with `group`, the client of each row, int64 [N], each client has one of its own rows, too.

    Raises:
        ValueError: if a value is so large that the others would lose their digits in float32;
            names column, row and value.
    """
    columns = [f"column {name}" for name in names[: values.shape[1]]]
    refuse_outliers(values[is_training], names=columns, rows=np.flatnonzero(is_training))
    scales = {ALL: Scales(*scale_of(values[is_training])[:2])}
    for client in np.unique([] if group is None else group[group >= 0]):
        rows = (group == client) & is_training
        scales[int(client)] = Scales(*scale_of(values[rows])[:2])
    return scales


def scaled(
    values: np.ndarray,
    scales: Mapping[int, Scales],
    *,
    group: np.ndarray | None = None,
    names: Sequence[str],
) -> np.ndarray:
    """Columns [N, D] minus their mean, divided by their deviation, float64.

    With `group`, int64 [N], a row uses the scale of its group; `ALL` if that has none.

    Raises:
        ValueError: if a value is so large that it exceeds float32; names column, row and value.
    """
    result = np.empty(values.shape)
    groups = np.full(len(values), ALL) if group is None else group
    for number in np.unique(groups):
        rows, scale = groups == number, scales.get(int(number), scales[ALL])
        result[rows] = (values[rows] - scale.mean) / scale.deviation
    beyond = ~(np.abs(result) <= LARGEST)
    if beyond.any():
        row, column = map(int, np.argwhere(beyond)[0])
        raise far_off(f"column {names[column]}", row, values[row, column])
    return result


def standardised(
    values: np.ndarray,
    *,
    is_training: np.ndarray,
    group: np.ndarray | None = None,
    names: Sequence[str],
) -> np.ndarray:
    """Columns [N, D] by the scales of their training rows, float64; see `fitted_scales`.

    Raises:
        ValueError: as `fitted_scales` and `scaled`.
    """
    scales = fitted_scales(values, is_training=is_training, group=group, names=names)
    return scaled(values, scales, group=group, names=names)


def scale_of(training: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard deviation [D] of rows [N, D], and which columns are constant, bool [D].

    The values of a constant column differ by rounding only. So that it becomes 0, its mean is its
    first value, which a mean may miss, and its deviation the largest value, at least 1.
    """
    largest = np.abs(training).max(axis=0)
    _, power = np.frexp(largest)
    apart = np.ldexp(training, -power)  # changes no digit; squares stay finite
    apart -= apart[0]  # exact where values are close
    spread = np.ldexp(apart.std(axis=0), power)
    is_constant = spread <= _ROUNDING * largest
    mean = training[0] + np.where(is_constant, 0.0, np.ldexp(apart.mean(axis=0), power))
    return mean, np.where(is_constant, np.maximum(largest, 1.0), spread), is_constant
