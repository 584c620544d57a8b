"""FedBN: BatchNorm layers stay on the client, all other layers are averaged.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization. ICLR 2021, Algorithm 1. https://arxiv.org/abs/2102.07623

    w_l[t+1] = mean_k w_l,k   for every layer l that is not BatchNorm

`bn=local` does the same for any other algorithm.
"""

from flfast.algorithms.contract import Algorithm, Weighting
from flfast.algorithms.kit.degenerate import degenerate
from flfast.algorithms.kit.keep_local import keep_local
from flfast.state.tree import Tree


def fedbn(*, weighting: Weighting, batchnorm: Tree) -> Algorithm:
    """FedAvg with BatchNorm's parameters and statistics kept on the client.

    Without BatchNorm layers, it is FedAvg.
    """
    none, fedavg = not any(batchnorm.values()), Algorithm(name="fedbn", weighting=weighting)
    degenerate(none, "algorithm=fedbn is FedAvg: the model has no BatchNorm")
    return fedavg if none else keep_local(fedavg, batchnorm)
