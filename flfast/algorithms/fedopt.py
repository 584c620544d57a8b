"""FedOpt: the server steps with an optimizer. FedAvg is SGD with learning rate 1.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization.
ICLR 2021, Algorithm 1. https://arxiv.org/abs/2003.00295

    Delta[t] = mean_k w_k[t+1] - w[t]
    w[t+1] = ServerOpt(w[t], -Delta[t], server_lr)

Buffers are averaged.
"""

from collections.abc import Callable

from torch.optim import Optimizer

from flfast.algorithms.contract import Algorithm, Weighting
from flfast.algorithms.kit.server_optimizer import server_optimized


def fedopt(*, server_optimizer: Callable[..., Optimizer], weighting: Weighting) -> Algorithm:
    """FedAvg with any torch optimizer on the server.

    The function `server_optimizer` gets the parameters.
    """
    return server_optimized(Algorithm(name="fedopt", weighting=weighting), server_optimizer)
