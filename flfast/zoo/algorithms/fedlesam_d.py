"""FedLESAM-D: FedLESAM with FedDyn's dynamic regulariser.

Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang: Locally Estimated Global Perturbations are Better than
Local Perturbations for Federated Sharpness-aware Minimization. ICML 2024.
https://arxiv.org/abs/2405.18890

    w := w - lr * (grad F_k(w + e_k; batch) - g_k[t] + alpha * (w - w[t]))

`fedlesam` has e_k, and `feddyn` the equations of g_k and of the server's model. The reported loss
is the one at w + e_k, without the regulariser.
"""

from flfast.algorithms.contract import Algorithm
from flfast.state.options import NonNegative, Positive
from flfast.zoo.algorithms.kit.dynamic_regulariser import dynamic_regulariser
from flfast.zoo.algorithms.kit.estimated_ascent import estimated_ascent


def fedlesam_d(*, alpha: Positive, rho: NonNegative) -> Algorithm:
    """FedDyn with FedLESAM's gradients; rho = 0 is FedDyn. All clients weigh the same."""
    return estimated_ascent(dynamic_regulariser("fedlesam_d", alpha=alpha), rho=rho)
