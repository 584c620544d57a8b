"""Choices among values that differ by rounding only: such values count as equal.

Engines, strategies and processors add in another order, so that two numbers which are equal by
symmetry differ in their last digits. Comparing them would let rounding choose. Here the first one
is chosen. What remains for rounding is a value exactly at the edge of what counts as equal.
"""

import numpy as np
import torch
from torch import Tensor

from flfast.state.precision import widened

EQUAL = 1e-4
"""Values that differ by less than this share of themselves count as equal: ten times the 1e-5 to
which all ways to execute a run agree."""


def largest(values: np.ndarray, num: int) -> np.ndarray:
    """Ascending indices int64 [num] of the largest values; near ties go to the lower index.

    Whatever is larger than the num-th largest value by more than `EQUAL` is chosen, and nothing
    that is smaller by more. Values [N] are finite, and a value and its neighbours may be added
    without overflow. `num` is from 0 to N.
    """
    size = len(values)
    if num in {0, size}:
        return np.arange(num)
    threshold = np.partition(values, size - num)[size - num]
    margin = EQUAL * abs(threshold)
    chosen = np.flatnonzero(values >= threshold - margin)
    surplus = len(chosen) - num
    if surplus:
        ties = np.flatnonzero(values[chosen] - threshold <= margin)
        chosen = np.delete(chosen, ties[-surplus:])
    return chosen


def first_lowest(values: Tensor) -> Tensor:
    """Index of the first of the lowest of N >= 1 values [..., N] in the last dimension, int64."""
    lowest = values.amin(-1, keepdim=True)
    return (values <= lowest + EQUAL * lowest.abs()).to(torch.uint8).argmax(-1)


def signs(values: Tensor, scale: Tensor | float) -> Tensor:
    """-1, 0 or 1; 0 for values that are zero beside `scale`. In the dtype of the values.

    `scale` is the magnitude of typical values, broadcast to the values.
    """
    return values.sign() * (values.abs() > EQUAL * scale)


def nearest_whole(values: Tensor) -> Tensor:
    """Rounded to whole numbers, in float64; halves go up, and what is a half but for rounding.

    >>> nearest_whole(torch.tensor([2.5, 2.4999999, 2.4, -0.5], dtype=torch.float64)).tolist()
    [3.0, 3.0, 2.0, 0.0]
    """
    return (widened(values) + (0.5 + EQUAL)).floor()
