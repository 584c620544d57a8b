"""Low-rank factors by a truncated singular value decomposition.

Eckart, Young: The Approximation of One Matrix by Another of Lower Rank. Psychometrika 1 (1936).
Used for federated uploads by Wu, Wu, Lyu, Huang, Xie: Communication-Efficient Federated Learning
via Knowledge Distillation (FedKD, whose ranks vary). Nature Communications 13 (2022).
https://arxiv.org/abs/2108.13323

    sent = U_r S_r V_r.T, the first r singular values and vectors of each matrix

No other matrix of rank r is closer. PowerSGD sends as many bytes and is about a hundred times as
fast, but its error is larger, the more so the slower the singular values fall off.
"""

import numpy as np
import torch
from torch import Tensor

from flfast.channel.compression.compression import Encoding
from flfast.state.options import Count
from flfast.zoo.channel.compression.factors import by_factors, scaled_to_one


def lowrank(*, rank: Count, feedback: bool) -> Encoding:
    """The best factors of rank `rank` of every matrix; where nothing is saved, the change."""

    def factorise(matrix: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        scaled, scale = scaled_to_one(matrix)
        left, values, right = torch.linalg.svd(scaled, full_matrices=False)
        return left[:, :rank], (right[:rank].T * values[:rank]).mul_(scale)

    return by_factors("lowrank", factorise, rank=rank, feedback=feedback)
