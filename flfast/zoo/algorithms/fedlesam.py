"""FedLESAM: local steps use the gradient uphill of what the server has moved away from.

Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang: Locally Estimated Global Perturbations are Better than
Local Perturbations for Federated Sharpness-aware Minimization. ICML 2024.
https://arxiv.org/abs/2405.18890

    e_k = rho * (w[t_k] - w[t]) / |w[t_k] - w[t]|,   |.| over all parameters
    w := w - lr * grad F_k(w + e_k; batch)

t_k is the last round of client k's before t; its first e_k is zero. So a step costs one gradient,
as FedAvg's, and clients keep a model. The paper estimates the global ascent direction so. The
authors' code takes the server's last step for all clients, divides by the sum of the norms of
single tensors, and indexes the flat step like a list of tensors: each tensor is moved by a number.
The reported loss is the one at w + e_k.
"""

from flfast.algorithms.contract import Algorithm, Weighting
from flfast.state.options import NonNegative
from flfast.zoo.algorithms.kit.estimated_ascent import estimated_ascent


def fedlesam(*, rho: NonNegative, weighting: Weighting) -> Algorithm:
    """FedAvg with local steps that are sharpness-aware at no cost; rho = 0 is FedAvg."""
    return estimated_ascent(Algorithm(name="fedlesam", weighting=weighting), rho=rho)
