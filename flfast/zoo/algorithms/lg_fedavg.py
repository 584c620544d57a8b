"""LG-FedAvg: local representations below a federated head.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally:
Federated Learning with Local and Global Representations. 2020, Algorithm 1.
https://arxiv.org/abs/2001.01523

    (l_k, g_k) := SGD on F_k(l_k, g_k),   g[t+1] = sum_k n_k / n * g_k

The authors start from a model trained by FedAvg (`init_from=RUN/model.pt`). Their code weighs all
clients the same (`uniform`).
"""

from flfast.algorithms.contract import Algorithm, Weighting
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.split import split
from flfast.state.tree import Tree


def lg_fedavg(*, head: list[str] | None, weighting: Weighting, initial: Tree) -> Algorithm:
    """FedAvg of the head; every client has its own body."""
    _, local_body = split(initial, head)
    federated = Algorithm(name="lg_fedavg", weighting=weighting)
    return keep_local(federated, local_body)
