"""The probability simplex."""

import torch
from torch import Tensor


def project(values: Tensor) -> Tensor:
    """The nearest point [N] of the probability simplex, in Euclidean distance.

    >>> project(torch.tensor([0.5, 1.0, -1.0]))
    tensor([0.2500, 0.7500, 0.0000])
    """
    # Adding a number to all values changes nothing, but 1e17 + 1 would be rounded to 1e17.
    values = values - values.max()
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(values) + 1)
    # NaN exceeds nothing; it stays NaN.
    num_positive = max(int((ordered > excess).sum()), 1)
    return (values - excess[num_positive - 1]).clamp(min=0)
