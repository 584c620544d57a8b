"""The geometric median by the smoothed Weiszfeld algorithm (RFA).

Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning. IEEE Transactions on
Signal Processing 70, 2022, Algorithm 2. https://arxiv.org/abs/1912.13445

    v <- sum_k b_k u_k / sum_k b_k,   b_k = w_k / max(eps, |v - u_k|)

The iteration starts at the coordinate-wise median. From the mean, the error due to a distant
attacker would shrink by only a constant factor per iteration. If v starts on an upload, the huge
b_k of that upload would keep it there, so the first step takes the median distance as eps. w_k are
the algorithm's weights, as in the paper.
"""

import torch
from torch import Tensor

from flfast.channel.aggregations.aggregation import Aggregation, Combined, Robust
from flfast.state.options import Count, Positive
from flfast.state.row_statistics import distances, trimmed_mean_of_rows, weighted_sum


def geometric_median(*, iterations: Count, eps: Positive) -> Robust:
    """The point with the smallest weighted sum of distances from the uploads.

    It stops early, once a step is no longer than `eps`.
    """

    def combine(rows: Tensor, weights: Tensor) -> Combined:
        share = weights / weights.sum()
        center = trimmed_mean_of_rows(rows, (len(rows) - 1) // 2).double()
        min_distance = float(distances(rows, center).median())
        for _ in range(iterations):
            closeness = share / distances(rows, center).clamp_(min=max(min_distance, eps))
            previous, center = center, weighted_sum(rows, closeness / closeness.sum())
            min_distance = 0.0
            if float((center - previous).norm()) <= eps:
                break
        return Combined(center.to(rows.dtype), torch.ones(len(rows), dtype=torch.bool))

    return Aggregation("geometric_median", combine, on_device=True)
