"""The coordinate-wise trimmed mean.

Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates. ICML 2018, Definition 2. https://arxiv.org/abs/1803.01498

All uploads weigh the same, so a client cannot gain influence by inflating its example count.
"""

import math

import torch
from torch import Tensor

from flfast.channel.aggregations.aggregation import Aggregation, Combined, Robust
from flfast.state.options import BelowHalf
from flfast.state.row_statistics import trimmed_mean_of_rows


def trimmed_mean(*, trim: BelowHalf) -> Robust:
    """The mean of each coordinate without its largest and smallest values."""

    def combine(rows: Tensor, weights: Tensor) -> Combined:
        # 0.2 * 15 is slightly more than 3 in floating point and must not round up to 4.
        num_trimmed = math.ceil(trim * len(rows) - 1e-9)
        vector = trimmed_mean_of_rows(rows, min(num_trimmed, (len(rows) - 1) // 2))
        return Combined(vector, torch.ones(len(rows), dtype=torch.bool))

    return Aggregation("trimmed_mean", combine, on_device=True)
