"""FedLESAM-S: FedLESAM whose local steps SCAFFOLD's control variates correct.

Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang: Locally Estimated Global Perturbations are Better than
Local Perturbations for Federated Sharpness-aware Minimization. ICML 2024.
https://arxiv.org/abs/2405.18890

    y <- y - lr * (g_k(y + e_k) - c_k + c),   from y = x, in K local steps

`fedlesam` has e_k, and `scaffold` the equations of c_k, c and x. The authors' code multiplies
c - c_k by 0.1; here it is not, as in SCAFFOLD. The reported loss is the one at y + e_k.
"""

from typing import Literal

from flfast.algorithms.contract import Algorithm
from flfast.algorithms.kit.control_variates import control_variates
from flfast.algorithms.kit.local_sgd import gradient_weight_of_sgd
from flfast.state.options import BelowOne, NonNegative, Positive
from flfast.zoo.algorithms.kit.estimated_ascent import estimated_ascent


def fedlesam_s(
    *,
    rho: NonNegative,
    server_lr: Positive,
    momentum: BelowOne | None,
    nesterov: bool | None,
    local_optimizer_state: Literal["reset"],
) -> Algorithm:
    """SCAFFOLD with FedLESAM's gradients; rho = 0 is SCAFFOLD."""
    weight = gradient_weight_of_sgd("fedlesam_s", momentum=momentum, nesterov=nesterov)
    return estimated_ascent(control_variates("fedlesam_s", weight, server_lr=server_lr), rho=rho)
