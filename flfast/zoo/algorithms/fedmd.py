"""FedMD: clients agree on logits of public examples, and learn from what they agree on.

Li, Wang: FedMD: Heterogenous Federated Learning via Model Distillation. NeurIPS 2019 workshop on
federated learning for data privacy and confidentiality, Algorithm 1.
https://arxiv.org/abs/1910.03581

    c_i = mean_k f_k(x_i),   over public examples i of the round's subset
    f_k := SGD on mean_i |f_k(x_i) - c_i|,   then SGD on F_k           digest, and revisit

f are logits, and the mean of |.| is also over classes, as in the authors' code. Public examples
are those of the server (`split.server_examples`), of which a subset is drawn anew in each round.
A round here is digest, revisit, and the logits for the next round's digest. Before there are any,
in round 1, clients learn the labels of public examples instead, which the paper does until they
converge. Models stay on the clients.
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
)
from flfast.algorithms.kit.keep_local import keep_local
from flfast.state.options import Count, NonNegativeInt
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, float_type
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.public_examples import (
    measured_logits,
    next_places,
    public_batch,
    public_logits,
    with_place,
)


def fedmd(
    *,
    subset: Count | None,
    digest_epochs: NonNegativeInt,
    initial: Tree,
    num_public: int,
    num_classes: int,
    seed: int,
) -> Algorithm:
    """Local training and consensus on public examples, of which a round has `subset` at most."""
    num, dtype = min(subset or num_public, num_public), float_type(initial)

    def drawn(round_idx: int) -> Tensor:
        rng = torch_generator(seed, "fedmd", round_idx)
        return torch.randperm(num_public, generator=rng)[:num]

    def server_state(weights: Tree) -> Tree:
        unknown = torch.zeros(num, num_classes, dtype=dtype)
        agreed = {"consensus": unknown, "agreed": torch.zeros(1, dtype=dtype)}
        return {**weights, **agreed, "rows": drawn(0), "next": drawn(1)}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        agreed = {"consensus": uploads.mean["logits"], "agreed": torch.ones_like(server["agreed"])}
        return {**server, **agreed, "rows": server["next"], "next": drawn(uploads.round + 1)}

    federated = Algorithm(
        name="fedmd",
        tasks=("classification",),
        weighting="uniform",
        server_state=server_state,
        broadcast=lambda server: server,
        start=lambda broadcast, client: with_place(model_weights(broadcast)),
        facts=("public",),
        stages=(
            *([LocalStage(epochs=digest_epochs, loss=digest)] if digest_epochs else []),
            LocalStage(),
            public_logits(lambda task, weights, batch, _: task.logits(weights, batch), "next"),
        ),
        separable=False,
        finish=finish,
        parts={"logits": Part(stale="refuse")},
        server_step=server_step,
    )
    return keep_local(federated, initial)


def digest(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
    """Mean |f_k(x_i) - c_i| of the next public examples; their cross-entropy before c."""
    server, places = ctx.server, next_places(params, batch, len(ctx.server["rows"]))
    public = public_batch(ctx, server["rows"][places])
    logits = task.logits(params, public)
    distances = (logits - server["consensus"][places]).abs().mean(1)
    errors = F.cross_entropy(logits, public.targets, reduction="none")
    return task.mean(torch.where(server["agreed"] > 0, distances, errors))


def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
    """The logits of the next round's public examples, after training."""
    return {"params": {}, "buffers": {}, "logits": measured_logits(ctx)}, ctx.client
