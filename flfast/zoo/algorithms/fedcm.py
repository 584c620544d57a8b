"""FedCM: local steps mix the gradient with the server's momentum.

Xu, Wang, Wang, Yao: FedCM: Federated Learning with Client-level Momentum. 2021, Algorithm 2.
https://arxiv.org/abs/2106.10874

    v = alpha * g_k(x) + (1 - alpha) * Delta[t],   x <- x - lr * v,   in K local steps
    Delta[t+1] = mean_k (x[t] - x_k) / (lr * K)
    x[t+1] = x[t] + server_lr * mean_k (x_k - x[t])

Delta starts at 0; the server keeps it, and broadcasts it with the model. In the paper the server
steps by -eta_g * Delta[t+1]: server_lr is eta_g / (lr * K), as it is in popular code. If clients
take different numbers of steps, K is their mean, so that every step weighs the same in Delta;
popular code takes the K of client 0 for all. With momentum, |a|_1 of FedNova replaces K. Buffers
are averaged.
"""

from typing import Literal

from flfast.algorithms.contract import Algorithm, Weighting
from flfast.algorithms.kit.local_sgd import gradient_weight_of_sgd
from flfast.state.options import BelowOne, Positive, PositiveUpToOne
from flfast.zoo.algorithms.kit.client_momentum import client_momentum


def fedcm(
    *,
    alpha: PositiveUpToOne,
    server_lr: Positive,
    weighting: Weighting,
    momentum: BelowOne | None,
    nesterov: bool | None,
    local_optimizer_state: Literal["reset"],
) -> Algorithm:
    """FedAvg with the server's momentum in local steps; alpha = server_lr = 1 is FedAvg.

    `local_optimizer_state` must be `reset`, because |a|_1 assumes that momentum starts at zero.
    """
    weight = gradient_weight_of_sgd("fedcm", momentum=momentum, nesterov=nesterov)
    return client_momentum("fedcm", weight, alpha=alpha, server_lr=server_lr, weighting=weighting)
