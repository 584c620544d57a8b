"""The coordinate-wise median.

Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates. ICML 2018, Definition 1. https://arxiv.org/abs/1803.01498

All uploads weigh the same, so a client cannot gain influence by inflating its example count.
"""

import torch
from torch import Tensor

from flfast.channel.aggregations.aggregation import Aggregation, Combined, Robust
from flfast.state.row_statistics import trimmed_mean_of_rows


def median() -> Robust:
    """The median of each coordinate; with an even number, the mean of the middle two."""

    def combine(rows: Tensor, weights: Tensor) -> Combined:
        vector = trimmed_mean_of_rows(rows, (len(rows) - 1) // 2)
        return Combined(vector, torch.ones(len(rows), dtype=torch.bool))

    return Aggregation("median", combine, on_device=True)
