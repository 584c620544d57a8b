"""MoFedSAM: FedSAM whose local steps mix the gradient uphill with the server's momentum.

Qu, Li, Duan, Liu, Tang, Lu: Generalized Federated Learning via Sharpness Aware Minimization. ICML
2022. https://arxiv.org/abs/2206.02618

    g = grad F_k(w; batch),   u = grad F_k(w + rho * g / |g|; batch),   |g| over all parameters
    w := w - lr * (alpha * u + (1 - alpha) * Delta[t]),   in K local steps
    Delta[t+1] = mean_k (w[t] - w_k) / (lr * K)
    w[t+1] = w[t] + server_lr * mean_k (w_k - w[t])

It is FedCM with FedSAM's gradient: `fedcm` says what K, Delta and server_lr are. With
alpha = server_lr = 1 it is FedSAM. A step costs two gradients. The reported loss is the one at w.
"""

from dataclasses import replace
from typing import Literal

from flfast.algorithms.contract import Algorithm
from flfast.algorithms.kit.local_sgd import gradient_weight_of_sgd
from flfast.state.options import BelowOne, NonNegative, Positive, PositiveUpToOne
from flfast.zoo.algorithms.kit.client_momentum import client_momentum
from flfast.zoo.algorithms.kit.sharpness_aware import uphill_gradient


def mofedsam(
    *,
    rho: NonNegative,
    alpha: PositiveUpToOne,
    server_lr: Positive,
    momentum: BelowOne | None,
    nesterov: bool | None,
    local_optimizer_state: Literal["reset"],
) -> Algorithm:
    """FedCM with sharpness-aware local steps; all clients weigh the same."""
    weight = gradient_weight_of_sgd("mofedsam", momentum=momentum, nesterov=nesterov)
    mixed = client_momentum(
        "mofedsam", weight, alpha=alpha, server_lr=server_lr, weighting="uniform"
    )
    return replace(mixed, gradient=uphill_gradient(rho))
