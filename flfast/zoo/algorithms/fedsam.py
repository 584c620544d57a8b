"""FedSAM: local steps use the gradient at a point uphill, which leads to flat minima.

Qu, Li, Duan, Liu, Tang, Lu: Generalized Federated Learning via Sharpness Aware Minimization. ICML
2022, Algorithm 1. https://arxiv.org/abs/2206.02618

    g = grad F_k(w; batch)
    w := w - lr * grad F_k(w + rho * g / |g|; batch),   |g| over all parameters

Both gradients use the same batch, so a step costs two. The same algorithm is in Caldarola, Caputo,
Ciccone: Improving Generalization in Federated Learning by Seeking Flat Minima (ECCV). As in their
code, both passes of a step update the running statistics of BatchNorm. The reported loss is the
one at w.
"""

from flfast.algorithms.contract import Algorithm, Weighting
from flfast.state.options import NonNegative
from flfast.zoo.algorithms.kit.sharpness_aware import uphill_gradient


def fedsam(*, rho: NonNegative, weighting: Weighting) -> Algorithm:
    """FedAvg with sharpness-aware local steps; rho = 0 is FedAvg."""
    return Algorithm(name="fedsam", weighting=weighting, gradient=uphill_gradient(rho))
