"""The coordinate-wise median.

Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates. ICML 2018, Definition 1. https://arxiv.org/abs/1803.01498

Uploads weigh the same: a client that lies about its number of examples gains nothing.
"""

import torch
from torch import Tensor

from flfast.aggregations.aggregation import Aggregation, Combined
from flfast.aggregations.row_statistics import trimmed_mean_of_rows


def median() -> Aggregation:
    """The median of each coordinate; of an even number, the mean of the two in the middle."""

    def combine(rows: Tensor, weights: Tensor) -> Combined:
        vector = trimmed_mean_of_rows(rows, (len(rows) - 1) // 2)
        return Combined(vector, torch.ones(len(rows), dtype=torch.bool))

    return Aggregation("median", combine)
