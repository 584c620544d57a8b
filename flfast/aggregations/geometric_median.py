"""The geometric median, by Weiszfeld's algorithm, smoothed: RFA.

Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning. IEEE Transactions on
Signal Processing 70, 2022, Algorithm 2. https://arxiv.org/abs/1912.13445

    v <- sum_k b_k u_k / sum_k b_k,   b_k = w_k / max(eps, |v - u_k|)

It starts at the coordinate-wise median: from the mean, uploads that are far away would be left
behind by a constant factor an iteration only. The first step, whose eps is the median distance,
leaves an upload that the median may be. Weights are the algorithm's, as in the paper.
"""

import torch
from torch import Tensor

from flfast.aggregations.aggregation import Aggregation, Combined
from flfast.aggregations.row_statistics import distances, trimmed_mean_of_rows, weighted_sum
from flfast.options import Count, Positive


def geometric_median(*, iterations: Count, eps: Positive) -> Aggregation:
    """The point with the least sum of distances from the uploads.

    Args:
        iterations: most of them, >= 1; it stops where it no longer moves by eps.
        eps: least distance that an upload is taken to have, > 0.
    """

    def combine(rows: Tensor, weights: Tensor) -> Combined:
        share = weights / weights.sum()
        center = trimmed_mean_of_rows(rows, (len(rows) - 1) // 2).double()
        least = float(distances(rows, center).median())
        for _ in range(iterations):
            closeness = share / distances(rows, center).clamp_(min=max(least, eps))
            before, center, least = center, weighted_sum(rows, closeness / closeness.sum()), 0.0
            if float((center - before).norm()) <= eps:
                break
        return Combined(center.to(rows.dtype), torch.ones(len(rows), dtype=torch.bool))

    return Aggregation("geometric_median", combine)
