"""FedSA-LoRA: factors A of LoRA are averaged; each client has its own B.

Guo, Zeng, Wang, Fan, Wang, Qu: Selective Aggregation for Low-Rank Adaptation in Federated
Learning. ICLR 2025, section 3. https://arxiv.org/abs/2410.01463

    (A_k, B_k) := SGD on F_k(A, B_k),   A := sum_k n_k / n * A_k

So a client's model is its own, and the server has none.
"""

from flfast.algorithms.contract import Algorithm, Weighting
from flfast.algorithms.kit.keep_local import keep_local
from flfast.state.tree import Tree
from flfast.state.weights import select_weights
from flfast.zoo.algorithms.kit.low_rank import factor_pairs


def fedsa_lora(*, weighting: Weighting, initial: Tree) -> Algorithm:
    """FedAvg without factors B of LoRA, which stay on the clients."""
    federated = Algorithm(name="fedsa_lora", weighting=weighting)
    local = {*factor_pairs(initial, algorithm="fedsa_lora").values()}
    if not local:
        return federated
    return keep_local(federated, select_weights(initial, local.__contains__))
