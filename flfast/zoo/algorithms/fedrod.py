"""FedRoD: a generic head for all classes alike, and a personal one for the client's own classes.

Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification. ICLR
2022, section 4, linear personal heads. https://arxiv.org/abs/2107.00778

    h_k(w)   = mean over examples of CE(g + gamma * log n_k, y),   g = generic logits of w [C]
    h_k(v_k) = mean over examples of CE(g + p, y),                 p = personal logits V_k z + c_k

n_k are the client's class counts [C]; a class that it lacks is not in the softmax. In the second
line g and the features z are constants. Clients share the body and the generic head, and predict
g + p. A personal head starts at the generic head of the client's first round, in popular code at
the initial one. The paper also has personal heads from a hypernetwork.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.algorithms.kit.last_layer import linear_head
from flfast.algorithms.kit.second_model import personal_part, upload_shared, with_personal
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, merge, part_of, tree_map
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.prototypes import EXCLUDED


def fedrod(
    *, gamma: NonNegative, head: list[str] | None, weighting: Weighting, initial: Tree
) -> Algorithm:
    """FedAvg with a balanced objective, and personal heads beside the shared one."""
    generic = linear_head(initial, head)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z = generic.features(task, params, batch)
        g, p = generic.logits(params, z), generic.logits(personal_part(params), z.detach())
        counts = ctx.facts["labels"]
        priors = gamma * counts.clamp(min=1).log()
        if gamma > 0:
            priors = torch.where(counts > 0, priors, EXCLUDED)
        logits = (g + priors.to(g.dtype), g.detach() + p)
        errors = [F.cross_entropy(x, batch.targets, reduction="none") for x in logits]
        return task.mean(errors[0] + errors[1])

    def personal(broadcast: Tree, client: Tree) -> Tree:
        weights = model_weights(broadcast)
        return merge(weights, tree_map(torch.add, part_of(weights, client), client))

    return Algorithm(
        name="fedrod",
        tasks=("classification",),
        weighting=weighting,
        client_state=lambda broadcast: part_of(broadcast, generic.initial),
        start=with_personal,
        facts=("labels",),
        loss=loss,
        finish=upload_shared,
        personal=personal,
    )
