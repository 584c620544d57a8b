"""FedAvgM: momentum on the server.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification. 2019, section 4.2. https://arxiv.org/abs/1909.06335

    v[t+1] = momentum * v[t] + (w[t] - mean_k w_k[t+1])
    w[t+1] = w[t] - server_lr * v[t+1]

The paper's experiments use Nesterov momentum: `algorithm=fedopt` with torch's SGD. Buffers are
averaged.
"""

from functools import partial

from torch.optim import SGD

from flfast.algorithms.contract import Algorithm, Weighting
from flfast.algorithms.kit.server_optimizer import server_optimized
from flfast.state.options import BelowOne, Positive


def fedavgm(*, server_lr: Positive, momentum: BelowOne, weighting: Weighting) -> Algorithm:
    """FedAvg with momentum on the server; server_lr = 1 and momentum = 0 is FedAvg."""
    make_optimizer = partial(SGD, lr=server_lr, momentum=momentum)
    return server_optimized(Algorithm(name="fedavgm", weighting=weighting), make_optimizer)
