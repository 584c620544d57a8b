"""The projection on the probability simplex: numbers >= 0 that add up to 1."""

import torch
from torch import Tensor


def nearest_mixture(values: Tensor) -> Tensor:
    """The nearest points of the simplex to the last axis of values [..., N], Euclidean.

    Duchi, Shalev-Shwartz, Singer, Chandra: Efficient Projections onto the l1-Ball for Learning in
    High Dimensions. ICML 2008, Figure 1.

    >>> nearest_mixture(torch.tensor([0.5, 1.0, -1.0]))
    tensor([0.2500, 0.7500, 0.0000])
    """
    # Adding a number to all values changes nothing, but 1e17 + 1 would be rounded to 1e17.
    values = values - values.amax(-1, keepdim=True)
    ordered = values.sort(-1, descending=True).values
    places = torch.arange(1, values.shape[-1] + 1, device=values.device)
    excess = (ordered.cumsum(-1) - 1) / places
    # NaN exceeds nothing; it stays NaN.
    num_positive = (ordered > excess).sum(-1, keepdim=True).clamp(min=1)
    return (values - excess.gather(-1, num_positive - 1)).clamp(min=0)
