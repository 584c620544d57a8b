"""FedAS: clients align the shared body to their own features, and weigh by Fisher information.

Yang, Huang, Ye: FedAS: Bridging Inconsistency in Personalized Federated Learning. CVPR 2024.
https://cvpr.thecvf.com/virtual/2024/poster/31300

    w := SGD on mean_i |z_i - P_k[y_i]|^2 / D of the body, from the server's,   z = features [D]
    (w_k, h_k) := SGD on F_k(w, h_k),   P_k[j] := mean of z over examples of class j
    w+ = sum_k t_k * w_k / sum_k t_k,   t_k = mean_i |grad of -log p(y_i | x_i)|^2 of all weights

h_k stays on the client, which predicts with (w_k, h_k). P_k is of its last round; in the first one
there is no alignment. t_k is the trace of the empirical Fisher information (`fisher_trace`). The
authors' code has gradients of batches, so that t_k depends on their size. Models must support
`torch.func.vmap`; GRU layers do not.
"""

from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from flfast.algorithms.contract import Algorithm, Context, Finished, LocalStage, Measure, Task
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.last_layer import linear_head
from flfast.algorithms.kit.split import split
from flfast.datamodules.batches import Batch
from flfast.state.options import NonNegativeInt, Positive
from flfast.state.tree import Tree, merge, part_of, squared_norm
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.class_means import class_means, class_sums

EPS = 1e-12
FISHER, SAMPLE = "Fisher information", 32
"""Name of the measure; examples of an evaluation batch that it reads."""


def fedas(
    *, align_epochs: NonNegativeInt, align_lr: Positive, head: list[str] | None, initial: Tree
) -> Algorithm:
    """FedPer with aligned bodies and Fisher weights.

    With `local_steps`, the alignment takes that many, unless `align_epochs` is 0.
    """
    local_head, body = split(initial, head)
    top = linear_head(initial, head)
    none = torch.zeros_like(initial["params"][top.names[0]])

    def known(weights: Tree, prototypes: Tensor, present: Tensor) -> Tree:
        own = part_of(weights, body)
        return {"body": own, "prototypes": prototypes, "present": present}

    def alignment(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        way = top.features(task, params, batch) - ctx.client["prototypes"][batch.targets]
        return task.mean(way.square().mean(1) * ctx.client["present"][batch.targets])

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return ctx.change(done.weights), known(done.weights, *class_means(ctx, none.dtype))

    def weight(done: Finished, ctx: Context) -> float:
        return EPS + float(ctx.measured[FISHER]["trace"] / ctx.facts["examples"])

    align = LocalStage(body["params"].keys(), epochs=align_epochs, loss=alignment, lr=align_lr)
    measures = Measure(FISHER, fisher_trace), class_sums(len(none), top.fixed_features)
    federated = Algorithm(
        name="fedas",
        tasks=("classification",),
        weighting=weight,
        facts=("examples",),
        client_state=lambda shared: known(shared, none, none[:, 0].clone()),
        stages=(*[align] * bool(align_epochs), LocalStage(), *measures),
        finish=finish,
        personal=lambda shared, client: merge(model_weights(shared), client["body"]),
    )
    return keep_local(federated, local_head)


def fisher_trace(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tree:
    """Sum over examples of |grad of -log p(y_i | x_i)|^2, estimated from every n-th example.

    The gradient of one example takes as much memory as the model.
    """

    def error(personal: Tree, x: Tensor, y: Tensor) -> Any:
        return task({**weights, **personal}, Batch(x.unsqueeze(0), y.unsqueeze(0)))

    personal = {name: weights[name] for name in ctx.start["params"]}
    x, y = (part[:: -(-len(batch.targets) // SAMPLE)] for part in batch[:2])
    grads = vmap(grad(error), in_dims=(None, 0, 0))(personal, x, y)
    return {"trace": squared_norm(grads) * len(batch.targets) / len(y)}
