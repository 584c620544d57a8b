"""FedNH: class prototypes replace the last layer; the server moves them to the clients' means.

Dai, Chen, Li, Heinecke, Sun, Xu: Tackling Data Heterogeneity in Federated Learning with Class
Prototypes. AAAI 2023, Algorithm 1. https://arxiv.org/abs/2212.02758

    h_k(w) = mean over examples of CE(scale * W z / |z|, y),   W = prototypes of length one [C, D]
    m_kc = norm(mean of z / |z| over client k's examples of class c), of its final model
    W_c := norm(rho * W_c + (1 - rho) * norm(sum_k n_kc * m_kc / sum_k n_kc)),   w := mean_k w_k

z are features before the last layer, whose weight is W and whose bias is 0: they are not trained.
So the server's model gives W z, whose largest component is the predicted class; its loss in
evaluation is not that of scale * W z / |z|. W starts orthogonal; a class that nobody in the cohort
has keeps its W_c. The scale is fixed, an option of the authors' code, which can also train it.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import (
    Algorithm,
    Batch,
    Context,
    Finished,
    LocalStage,
    Part,
    Task,
    Uploads,
    Weighting,
)
from flfast.algorithms.kit.last_layer import linear_head
from flfast.algorithms.kit.split import split
from flfast.state.options import Positive, UpToOne
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, add, merge, part_of
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.class_means import class_means, class_sums, summed


def fednh(
    *,
    scale: Positive,
    rho: UpToOne,
    head: list[str] | None,
    weighting: Weighting,
    initial: Tree,
    seed: int,
) -> Algorithm:
    """FedAvg of the body, trained below prototypes that the server averages over rounds."""
    top, body = linear_head(initial, head), split(initial, head)[1]
    name, like = top.names[0], initial["params"][top.names[0]]
    fixed = {name: orthogonal(like, seed)}
    fixed |= {bias: torch.zeros_like(initial["params"][bias]) for bias in top.names[1:]}

    def directions(task: Task, weights: Tree, batch: Batch) -> Tensor:
        return F.normalize(top.fixed_features(task, weights, batch), dim=1)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z = F.normalize(top.features(task, params, batch), dim=1)
        logits = scale * z @ ctx.start["params"][name].to(z.dtype).T
        return task.mean(F.cross_entropy(logits, batch.targets, reduction="none"))

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        counts = summed(ctx)[1].to(like.dtype)
        sums = F.normalize(class_means(ctx, like.dtype)[0], dim=1) * counts.unsqueeze(1)
        upload = ctx.change(part_of(done.weights, body))
        return {**upload, "prototypes": sums, "counts": counts}, ctx.client

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        old, means = server["params"][name], F.normalize(uploads.mean["prototypes"], dim=1)
        new = F.normalize(rho * old + (1 - rho) * means, dim=1)
        known = uploads.mean["counts"].unsqueeze(1) > 0
        moved = add(server, model_weights(uploads.mean))
        return merge(moved, {"params": {name: torch.where(known, new, old)}})

    return Algorithm(
        name="fednh",
        tasks=("classification",),
        weighting=weighting,
        server_state=lambda weights: merge(weights, {"params": fixed}),
        stages=(
            LocalStage([*body["params"]], loss=loss),
            class_sums(len(like), directions),
        ),
        finish=finish,
        parts={"prototypes": Part("sum", over="counts"), "counts": Part("sum", learned=False)},
        server_step=server_step,
    )


def orthogonal(like: Tensor, seed: int) -> Tensor:
    """Random rows of length one [C, D], which are orthogonal if C <= D."""
    rng = torch_generator(seed, "initial prototypes")
    columns = torch.linalg.qr(torch.randn(max(like.shape), min(like.shape), generator=rng))[0]
    rows = columns if like.shape[0] > like.shape[1] else columns.T
    return F.normalize(rows, dim=1).to(like)
