"""The coordinate-wise trimmed mean.

Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates. ICML 2018, Definition 2. https://arxiv.org/abs/1803.01498

Uploads weigh the same: a client that lies about its number of examples gains nothing.
"""

import logging
import math

import torch
from torch import Tensor

from flfast.aggregations.aggregation import Aggregation, Combined
from flfast.aggregations.row_statistics import trimmed_mean_of_rows
from flfast.options import BelowHalf

log = logging.getLogger(__name__)


def trimmed_mean(*, trim: BelowHalf) -> Aggregation:
    """The mean of each coordinate without its extremes.

    Args:
        trim: share of the uploads to leave out on either side, rounded up, in [0, 0.5); 0 is the
            mean of equal weights.
    """
    if not trim:
        log.warning("aggregation.trim=0: nothing is trimmed, this is the mean of equal weights")

    def combine(rows: Tensor, weights: Tensor) -> Combined:
        # Not 4 of 15 at 0.2, whose product is a little more than 3.
        wanted = math.ceil(trim * len(rows) - 1e-9)
        vector = trimmed_mean_of_rows(rows, min(wanted, (len(rows) - 1) // 2))
        return Combined(vector, torch.ones(len(rows), dtype=torch.bool))

    return Aggregation("trimmed_mean", combine)
