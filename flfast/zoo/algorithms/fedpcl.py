"""FedPCL: features learn by contrast with the class prototypes of all clients.

Tan, Long, Ma, Liu, Zhou, Jiang: Federated Learning from Pre-Trained Models: A Contrastive Learning
Approach. NeurIPS 2022, Algorithm 1. https://arxiv.org/abs/2209.10083

    h_k(w) = mean_i [l(z_i, y_i, P) + mean_m l(z_i, y_i, P_m)]   over examples i, clients m
    l(z, y, P) = -log(exp(<z, P[y]> / tau) / sum_{j != y} exp(<z, P[j]> / tau))
    P_m[j] = mean of z over client m's examples of class j,   P[j] = mean_m P_m[j]

z are features before the head, divided by their length, in P_m those of final models. P[j] stands
for the P_m[j] that a client lacks. Without P[y] or any other P[j] there is no term: round 1 only
measures. In the paper z is a trained projection of frozen pre-trained backbones. Here it is that
of the given model, whose head is not trained. A client predicts the nearest P_k[j], as in the
authors' code. That code contrasts examples of a batch instead; PFLlib's sum includes y.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, LocalStage, Part, Task
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.last_layer import linear_head
from flfast.algorithms.kit.split import split
from flfast.state.options import Count, Positive
from flfast.state.tree import Tree, merge
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.class_means import class_means, class_sums
from flfast.zoo.algorithms.kit.prototypes import complete, contrast, latest, nearest, no_rows


def fedpcl(*, tau: Positive, num_sets: Count, head: list[str] | None, initial: Tree) -> Algorithm:
    """Local training of features against global and local prototypes."""
    body, top = split(initial, head)[1], linear_head(initial, head)
    like = torch.zeros_like(initial["params"][top.names[0]])
    nothing = {"prototypes": like, "known": torch.zeros_like(like[:, 0])}

    def features(task: Task, weights: Tree, batch: Batch) -> Tensor:
        return F.normalize(top.fixed_features(task, weights, batch), dim=1)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z = F.normalize(top.features(task, params, batch), dim=1)
        terms = contrast(z, batch.targets, ctx.server["prototypes"], ctx.server["known"], tau)
        return task.mean(terms @ ctx.server["weights"])

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        own = dict(zip(nothing, class_means(ctx, like.dtype), strict=True))
        return {"params": {}, "buffers": {}, **own}, own

    federated = Algorithm(
        name="fedpcl",
        tasks=("classification",),
        server_state=lambda weights: {**weights, "local": no_rows(num_sets, nothing)},
        client_state=lambda broadcast: nothing,
        broadcast=lambda server: {**model_weights(server), **complete(server["local"])},
        stages=(LocalStage(body["params"].keys(), loss=loss), class_sums(len(like), features)),
        finish=finish,
        parts={"prototypes": Part("rows", stale="refuse"), "known": Part("rows", learned=False)},
        server_step=lambda server, up: {**server, "local": latest(server["local"], up)},
        personal=lambda shared, client: merge(model_weights(shared), {"buffers": client}),
        predict=lambda task, w, b: nearest(features(task, w, b), w["prototypes"], w["known"]),
    )
    return keep_local(federated, initial)
