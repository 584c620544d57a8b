"""Majority vote over signs: every client has one vote per coordinate, of fixed size.

Bernstein, Zhao, Azizzadenesheli, Anandkumar: signSGD with Majority Vote is Communication Efficient
And Fault Tolerant. ICLR 2019, Algorithm 1. https://arxiv.org/abs/1810.05291

    result = step * sign(sum_k sign(x_k))

x_k are changes, which in the paper are steps along a gradient. A draw leaves the coordinate as it
is. Values that may be zero but for rounding have no vote: 1e-4 of the mean magnitude of the
client's change or less (`state/near_ties.py`). All clients have one vote. Whole changes are sent;
`compression=sign` sends signs.
"""

import torch
from torch import Tensor

from flfast.channel.aggregations.aggregation import Aggregation, Combined, Robust
from flfast.state.near_ties import signs
from flfast.state.options import Positive
from flfast.state.row_statistics import column_blocks


def sign_majority(*, step: Positive) -> Robust:
    """Steps of one size, in the direction that most clients want."""

    def combine(rows: Tensor, weights: Tensor) -> Combined:
        norms = torch.linalg.vector_norm(rows, 1, dim=1, keepdim=True, dtype=torch.float64)
        scale = norms / max(rows.shape[1], 1)
        votes = [signs(block, scale).sum(dim=0).sign() for block in column_blocks(rows)]
        vector = step * torch.cat([rows.new_empty(0), *votes])
        return Combined(vector, torch.ones(len(rows), dtype=torch.bool))

    return Aggregation("sign_majority", combine, on_device=True)
