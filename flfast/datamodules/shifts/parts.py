"""Applies a function to the parts of examples whose clients got the same."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def each_value(
    inputs: Tensor,
    values: np.ndarray,
    neutral: float,
    change: Callable[[Tensor, float], Tensor],
) -> Tensor:
    """New inputs [M, ...]; those whose value is neutral stay as they are.

    Args:
        inputs: [M, ...].
        values: parameter of the change for each input, [M].
        neutral: value that changes nothing.
        change: (inputs [m, ...] of one value, the value) -> new inputs.
    """
    result = inputs.clone()
    for value in np.unique(values[values != neutral]).tolist():
        part = torch.from_numpy(np.flatnonzero(values == value))
        result[part] = change(inputs[part], value)
    return result
