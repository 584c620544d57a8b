"""FedAvg: the server's model becomes the weighted mean of the cohort's models.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, Algorithm 1. https://arxiv.org/abs/1602.05629

    w[t+1] = sum_k n_k / n * w_k[t+1],   k over the cohort, n = sum_k n_k

With `weighting="uniform"`, 1 / K replaces n_k / n. Buffers are averaged like parameters.
"""

from flfast.algorithms.contract import Algorithm, Weighting


def fedavg(*, weighting: Weighting) -> Algorithm:
    """Federated averaging of parameters and buffers.

    Args:
        weighting: `samples`, as in the paper, or `uniform`.
    """
    return Algorithm(name="fedavg", weighting=weighting)
