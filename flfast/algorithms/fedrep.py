"""FedRep: a client fits its own head to the shared representation, then improves that.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized
Federated Learning. ICML 2021, Algorithm 1. https://arxiv.org/abs/2102.07078

    h_k := SGD on F_k(phi[t], h_k), head epochs;   phi_k := SGD on F_k(phi_k, h_k), local epochs
    phi[t+1] = sum_k n_k / n * phi_k

The paper has clients of one size, where `samples` and `uniform` are the same.
"""

from dataclasses import replace

from flfast.algorithms.algorithm import Algorithm, LocalStage, Weighting
from flfast.algorithms.keep_local import keep_local
from flfast.algorithms.split import split
from flfast.options import Count
from flfast.state.tree import Tree


def fedrep(
    *, head: list[str] | None, head_epochs: Count, weighting: Weighting, initial: Tree
) -> Algorithm:
    """FedPer whose clients train first the head, then the body.

    Args:
        head: layers of the head; None is the last layer.
        head_epochs: passes that train the head; `local_epochs` are those that train the body.
            With `local_steps` both take so many steps.
        weighting: `samples` or `uniform`.
        initial: weights before round 1.
    """
    own, shared = split(initial, head)
    stages = (
        LocalStage(trains=own["params"].keys(), epochs=head_epochs),
        LocalStage(trains=shared["params"].keys()),
    )
    algorithm = Algorithm(name="fedrep", weighting=weighting, stages=stages)
    return replace(keep_local(algorithm, own), evaluate_server=False)
