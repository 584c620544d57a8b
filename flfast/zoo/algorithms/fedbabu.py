"""FedBABU: clients train and share the body; the head keeps its initial values.

Oh, Kim, Yun: FedBABU: Towards Enhanced Representation for Federated Image Classification.
ICLR 2022, Algorithm 1. https://arxiv.org/abs/2106.06042

    w_ext,k := SGD on F_k(w_ext,k, w_cls[0]),   w_ext[t+1] = sum_k n_k / n * w_ext,k

Personal models come from fine-tuning the whole model at evaluation. The authors' code does so for
five epochs (`finetune_epochs=5`).
"""

from flfast.algorithms.contract import Algorithm, LocalStage, Weighting
from flfast.algorithms.kit.split import split
from flfast.state.tree import Tree, merge, part_of


def fedbabu(*, head: list[str] | None, weighting: Weighting, initial: Tree) -> Algorithm:
    """FedAvg of the body below a fixed head.

    Clients draw the head from the seed, so it is not sent.
    """
    fixed_head, body = split(initial, head)

    return Algorithm(
        name="fedbabu",
        weighting=weighting,
        stages=(LocalStage(trains=body["params"].keys()),),
        broadcast=lambda server: part_of(server, body),
        start=lambda broadcast, client: merge(part_of(broadcast, body), fixed_head),
        finish=lambda done, ctx: (ctx.change(part_of(done.weights, body)), ctx.client),
    )
