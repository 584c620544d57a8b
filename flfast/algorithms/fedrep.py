"""FedRep: a client first fits its own head, then trains the shared representation.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized
Federated Learning. ICML 2021, Algorithm 1. https://arxiv.org/abs/2102.07078

    h_k := SGD on F_k(phi[t], h_k), head epochs;   phi_k := SGD on F_k(phi_k, h_k), local epochs
    phi[t+1] = sum_k n_k / n * phi_k

In the paper all clients have the same size, so `samples` and `uniform` are the same.
"""

from flfast.algorithms.contract import Algorithm, LocalStage, Weighting
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.split import split
from flfast.state.options import Count
from flfast.state.tree import Tree


def fedrep(
    *, head: list[str] | None, head_epochs: Count, weighting: Weighting, initial: Tree
) -> Algorithm:
    """FedPer whose clients train the head first, then the body.

    With `local_steps`, the head and the body each take that many steps.
    """
    local_head, body = split(initial, head)
    stages = (
        LocalStage(trains=local_head["params"].keys(), epochs=head_epochs),
        LocalStage(trains=body["params"].keys()),
    )
    algorithm = Algorithm(name="fedrep", weighting=weighting, stages=stages)
    return keep_local(algorithm, local_head)
