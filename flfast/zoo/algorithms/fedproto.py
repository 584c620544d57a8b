"""FedProto: clients share class prototypes instead of weights.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous
Clients. AAAI 2022, Algorithm 1. https://arxiv.org/abs/2105.00243

    F_k(w) + lam * mean_i |z_i - P[y_i]|^2 / D,   z = features before the head, [D]
    P[j] = sum_k sum_{i in k, y_i = j} z_i / sum_k N_kj

z in P[j] are of final models. A client predicts the class of the nearest prototype, and with its
head before there are any. Dividing by D is the authors' code's. Classes without P have no term.
"""

from dataclasses import replace

import torch

from flfast.algorithms.contract import Algorithm, Context, Finished, Part
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.last_layer import linear_head
from flfast.state.options import NonNegative
from flfast.state.tree import Tree
from flfast.zoo.algorithms.kit.class_means import summed
from flfast.zoo.algorithms.kit.prototypes import pulled_to_prototypes


def fedproto(*, lam: NonNegative, head: list[str] | None, initial: Tree) -> Algorithm:
    """Local training whose features are pulled to the prototypes of their classes."""
    top = linear_head(initial, head)
    like = initial["params"][top.names[0]]
    shared = {"prototypes": torch.zeros_like(like), "counts": torch.zeros_like(like[:, 0])}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        sums, counts = (leaf.to(like.dtype) for leaf in summed(ctx))
        return {"params": {}, "buffers": {}, "prototypes": sums, "counts": counts}, ctx.client

    pulled = pulled_to_prototypes("fedproto", top, shared, known="counts", lam=lam)
    federated = replace(
        pulled,
        finish=finish,
        parts={"prototypes": Part("sum", over="counts"), "counts": Part("sum", learned=False)},
        server_step=lambda server, uploads: {**server, **uploads.mean},
    )
    return keep_local(federated, initial)
