"""The geometric median, by Weiszfeld's algorithm, smoothed: RFA.

Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning. IEEE Transactions on
Signal Processing 70, 2022, Algorithm 2. https://arxiv.org/abs/1912.13445

    v <- sum_k b_k u_k / sum_k b_k,   b_k = w_k / max(eps, |v - u_k|)

It starts at the weighted mean. Weights are the algorithm's, as in the paper.
"""

import torch
from torch import Tensor

from flfast.aggregations.aggregation import Aggregation, Combined
from flfast.aggregations.rows import distances, weighted_sum
from flfast.options import Count, Positive


def geometric_median(*, iterations: Count, eps: Positive) -> Aggregation:
    """The point with the least sum of distances from the uploads.

    Args:
        iterations: most of them, >= 1; it stops where it no longer moves by eps.
        eps: least distance that an upload is taken to have, > 0.
    """

    def combine(rows: Tensor, weights: Tensor) -> Combined:
        share = weights / weights.sum()
        center = weighted_sum(rows, share)
        for _ in range(iterations):
            closeness = share / distances(rows, center).clamp_(min=eps)
            before, center = center, weighted_sum(rows, closeness / closeness.sum())
            if float((center - before).norm()) <= eps:
                break
        return Combined(center.to(rows.dtype), torch.ones(len(rows), dtype=torch.bool))

    return Aggregation("geometric_median", combine)
