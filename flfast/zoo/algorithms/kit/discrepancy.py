"""The distance between two samples of features."""

from collections.abc import Sequence

import torch
from torch import Tensor


def squared_mmd(sample: Tensor, other: Tensor, *, widths: Sequence[float] | None = None) -> Tensor:
    """Squared maximum mean discrepancy [] of two samples [B, D], differentiable in both.

    Long, Cao, Wang, Jordan: Learning Transferable Features with Deep Adaptation Networks. ICML
    2015. The kernel is the sum of exp(-d^2 / b) over widths b, where d^2 is the squared distance
    of two examples. `widths` are b; None is s / 4, s / 2, s, 2 s and 4 s, where s is the mean of
    d^2 over all pairs, a constant. Of one example, whose gradient would then grow without bound as
    the distance vanishes, the discrepancy is 0.
    """
    if len(sample) == 1 and widths is None:
        return 0 * sample.sum()
    points, num = torch.cat([sample, other]), len(sample)
    lengths = points.square().sum(1)
    distances = (lengths[:, None] + lengths[None] - 2 * points @ points.T).clamp(min=0)
    mean = distances.detach().sum() / (4 * num**2 - 2 * num) + 1e-8  # not 0 for equal points
    used = [mean * 2.0**i for i in range(-2, 3)] if widths is None else widths
    kernel = torch.stack([torch.exp(-distances / width) for width in used]).sum(0)
    signs = torch.where(torch.arange(2 * num, device=points.device) < num, 1.0, -1.0).to(points)
    return signs @ kernel @ signs / num**2
