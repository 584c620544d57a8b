"""FedAdagrad: Adagrad on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization.
ICLR 2021, Algorithm 2. https://arxiv.org/abs/2003.00295

    Delta[t] = mean_k w_k[t+1] - w[t]
    m[t] = beta1 * m[t-1] + (1 - beta1) * Delta[t]
    v[t] = v[t-1] + Delta[t]^2
    w[t+1] = w[t] + server_lr * m[t] / (sqrt(v[t]) + tau),   m[-1] = 0, v[-1] = tau^2

The paper requires v[-1] >= tau^2; the authors' code starts at 0. Buffers are averaged.
"""

import operator

from flfast.algorithms.contract import Algorithm, Weighting
from flfast.algorithms.kit.adaptive_server import adaptive_server
from flfast.state.options import BelowOne, Positive


def fedadagrad(
    *, server_lr: Positive, beta1: BelowOne, tau: Positive, weighting: Weighting
) -> Algorithm:
    """FedAvg with Adagrad on the server."""
    return adaptive_server(
        "fedadagrad", operator.add, server_lr=server_lr, beta1=beta1, tau=tau, weighting=weighting
    )
