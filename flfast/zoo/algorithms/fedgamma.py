"""FedGAMMA: SCAFFOLD whose local steps use the gradient at a point uphill.

Dai, Yang, Sun, Shen, Tian, Wang, Zhang: FedGAMMA: Federated Learning With Global Sharpness-Aware
Minimization. IEEE TNNLS 2023. https://doi.org/10.1109/TNNLS.2023.3304453

    g = g_k(y; batch),   u = g_k(y + rho * g / |g|; batch),   |g| over all parameters
    y <- y - lr * (u - c_k + c),   from y = x, in K local steps
    c_k+ = c_k - c + (x - y) / (K * lr)
    x+ = x + server_lr * mean_k (y_k - x)
    c+ = c + 1 / population * sum_k (c_k+ - c_k)

`scaffold` says what is kept and sent, and what K is with momentum. The equations are those of the
authors' code, whose K is that of client 0 for all. A step costs two gradients. The reported loss
is the one at y.
"""

from dataclasses import replace
from typing import Literal

from flfast.algorithms.contract import Algorithm
from flfast.algorithms.kit.control_variates import control_variates
from flfast.algorithms.kit.local_sgd import gradient_weight_of_sgd
from flfast.state.options import BelowOne, NonNegative, Positive
from flfast.zoo.algorithms.kit.sharpness_aware import uphill_gradient


def fedgamma(
    *,
    rho: NonNegative,
    server_lr: Positive,
    momentum: BelowOne | None,
    nesterov: bool | None,
    local_optimizer_state: Literal["reset"],
) -> Algorithm:
    """SCAFFOLD with sharpness-aware local steps; rho = 0 is SCAFFOLD."""
    weight = gradient_weight_of_sgd("fedgamma", momentum=momentum, nesterov=nesterov)
    corrected = control_variates("fedgamma", weight, server_lr=server_lr)
    return replace(corrected, gradient=uphill_gradient(rho))
