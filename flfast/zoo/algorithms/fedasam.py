"""FedASAM: FedSAM whose point uphill moves every parameter in proportion to its size.

Caldarola, Caputo, Ciccone: Improving Generalization in Federated Learning by Seeking Flat Minima.
ECCV 2022. https://arxiv.org/abs/2203.11834

    g = grad F_k(w; batch),   T = |w| + eta, element by element
    w := w - lr * grad F_k(w + rho * T^2 g / |T g|; batch),   |T g| over all parameters

The step is ASAM's (Kwon, Kim, Park, Choi). The authors' code has T = 1 for parameters without
`weight` in their names, such as biases; here the equation holds for all. As in their code, both
passes of a step update the running statistics of BatchNorm. The reported loss is the one at w.
"""

from flfast.algorithms.contract import Algorithm, Weighting
from flfast.state.options import NonNegative
from flfast.zoo.algorithms.kit.sharpness_aware import uphill_gradient


def fedasam(*, rho: NonNegative, eta: NonNegative, weighting: Weighting) -> Algorithm:
    """FedAvg with adaptive sharpness-aware local steps; rho = 0 is FedAvg."""
    return Algorithm(name="fedasam", weighting=weighting, gradient=uphill_gradient(rho, eta=eta))
