"""FedPer: the body is federated, the personalisation layers stay on the client.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers. 2019,
Algorithms 1 and 2. https://arxiv.org/abs/1912.00818

    (W_B, W_Pk) := SGD on F_k(W_B, W_Pk),   W_B[t+1] = sum_k n_k / n * W_Bk
"""

from flfast.algorithms.contract import Algorithm, Weighting
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.split import split
from flfast.state.tree import Tree


def fedper(*, head: list[str] | None, weighting: Weighting, initial: Tree) -> Algorithm:
    """FedAvg of the body; clients train their own heads together with the body."""
    local_head, _ = split(initial, head)
    federated = Algorithm(name="fedper", weighting=weighting)
    return keep_local(federated, local_head)
