"""Low-rank factors by one power iteration.

Vogels, Karimireddy, Jaggi: PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization. NeurIPS 2019, Algorithm 1. https://arxiv.org/abs/1905.13727

    P = orthogonalise(M Q);  Q' = M.T P;  sent = P Q'.T,  for each matrix M [n, m] and Q [m, r]

Deviations. Each client sends factors of its own change: a server that averages uploads has no
all-reduce between the two products. Q is drawn anew for each message ("cold start" in the paper's
section 4.2): a client that is drawn seldom would warm-start from an old one, and has no more state
to keep. Orthogonalisation is torch's QR instead of Gram-Schmidt.
"""

import numpy as np
import torch
from torch import Tensor

from flfast.channel.compression.compression import Encoding
from flfast.state.options import Count
from flfast.zoo.channel.compression.factors import by_factors, scaled_to_one


def powersgd(*, rank: Count, feedback: bool) -> Encoding:
    """Factors of rank `rank` of every matrix; a rank at which nothing is saved is the change."""

    def factorise(matrix: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        scaled, scale = scaled_to_one(matrix)
        drawn = rng.standard_normal((rank, matrix.shape[1]), dtype=np.float32)
        # The small matrix comes first: BLAS is several times as fast as with M Q.
        left = torch.linalg.qr((torch.from_numpy(drawn).to(matrix) @ scaled.T).T).Q
        return left, (left.T @ scaled).mul_(scale).T

    return by_factors("powersgd", factorise, rank=rank, feedback=feedback)
