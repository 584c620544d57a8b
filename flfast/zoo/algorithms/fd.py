"""FD, federated distillation: clients share mean outputs per class, and learn from each other's.

Jeong, Oh, Kim, Park, Bennis, Kim: Communication-Efficient On-Device Machine Learning: Federated
Distillation and Augmentation under Non-IID Private Data. 2018, Algorithm 1.
https://arxiv.org/abs/1811.11479

    h_k(w) = F_k(w) - gamma * mean_i sum_c Q_k[y_i, c] * log p_c(x_i)   over examples i
    G_k[j] = mean of p over client k's examples of class j, along its local training
    Q_k[j] = mean of G_l[j] over the other clients l of the previous round

p is the softmax of the logits, before each local step. Classes without Q_k have no term. PFLlib
averages logits instead, over all clients, k included. A client subtracts its own G_k from the sum
over the cohort. If an aggregation rule has left it out, negative results become zero.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, Part, Task
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.last_layer import last_weight
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, merge
from flfast.state.weights import model_weights

SUMS = "fd/sums"


def fd(*, gamma: NonNegative, initial: Tree) -> Algorithm:
    """Local training with the other clients' mean outputs as teachers; gamma = 0 is `local`.

    The last layer must give the logits.

    Raises:
        ValueError: if the last layer's own weight is not trained.
    """
    last = last_weight(initial, algorithm="fd")
    zeros, never = last.new_zeros(len(last), len(last) + 1), torch.tensor(-1.0).double()
    nothing = {"outputs": zeros[:, 1:].clone(), "clients": zeros[:, 0].clone()}

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        log_p, y = F.log_softmax(task.logits(params, batch), dim=1), batch.targets
        p = F.pad(log_p.detach().exp(), (0, 1), value=1.0)  # the last column counts examples
        params[SUMS].add_(F.one_hot(y, len(last)).to(p.dtype).T @ p)
        own = (ctx.server["round"] == ctx.client["round"]).to(zeros.dtype)
        sums, num = (ctx.server[name] - own * ctx.client[name] for name in nothing)
        teachers = (sums.clamp(min=0) / num.clamp(min=1).unsqueeze(1))[y]
        distilled = (teachers * log_p).sum(1)  # zero for classes without a teacher
        return task.mean(F.nll_loss(log_p, y, reduction="none") - gamma * distilled)

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        sums, counts = done.weights["buffers"][SUMS].split([len(last), 1], dim=1)
        means = {"outputs": sums / counts.clamp(min=1), "clients": counts.squeeze(1).clamp(max=1)}
        return {"params": {}, "buffers": {}, **means}, {**means, "round": ctx.facts["round"].cpu()}

    federated = Algorithm(
        name="fd",
        tasks=("classification",),
        server_state=lambda w: {**w, **nothing, "round": torch.zeros_like(never)},
        client_state=lambda broadcast: {**nothing, "round": never},
        broadcast=lambda server: server,
        start=lambda b, client: merge(model_weights(b), {"buffers": {SUMS: zeros}}),
        facts=("round",),
        loss=loss,
        separable=False,
        finish=finish,
        parts={"outputs": Part("sum"), "clients": Part("sum", learned=False)},
        server_step=lambda s, up: {**s, **up.mean, "round": torch.full_like(never, up.round)},
    )
    return keep_local(federated, initial)
