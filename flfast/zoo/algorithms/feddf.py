"""FedDF: after averaging, the server distils the ensemble of the clients' models into the mean.

Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning.
NeurIPS 2020, Algorithms 1 and 3. https://arxiv.org/abs/2006.07242

    x = sum_k n_k / n * x_k
    x := Adam on KL(softmax(mean_k f(x_k, d)), softmax(f(x, d))),   server_steps times

f are logits, d are batches of the server's own examples (`split.server_examples`), whose labels
are not read. With `model=family` the server has a model x of each member. It averages the models
of that member's clients, and all clients teach all of them; the first one is the server's.

Models x_k predict in evaluation mode, once for each example, x in training mode. Examples are not
augmented. Adam starts afresh every round, whatever the optimizer of the clients. The paper takes
up to 10,000 steps, anneals the rate along a cosine and stops early; here their number and the rate
are fixed. The authors' code also clips gradients, and returns the best of the models that it
validated. The server gets the models x_k in rows, so that a robust rule does not act on them.
"""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from flfast.algorithms.contract import (
    Algorithm,
    Batch,
    Context,
    KitFunctions,
    LocalStage,
    Part,
    Round,
    ServerCall,
    Task,
    Uploads,
    Weighting,
)
from flfast.algorithms.kit.model_groups import mean_of
from flfast.algorithms.kit.several_models import one_of
from flfast.state.options import Count, NonNegativeInt, Positive
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, add, float_type, leaves, tree_map
from flfast.state.weights import WEIGHTS, by_name, model_weights
from flfast.zoo.algorithms.kit.divergence import divergence
from flfast.zoo.algorithms.kit.public_examples import (
    measured_logits,
    next_places,
    of_server,
    public_batch,
    public_logits,
)

ROWS = Part("rows")


def feddf(  # noqa: PLR0913 - one parameter an option
    *,
    server_steps: NonNegativeInt,
    server_lr: Positive,
    server_batch_size: Count,
    weighting: Weighting,
    initial: Tree,
    members: Sequence[Tree],
    num_public: int,
    num_classes: int,
    seed: int,
) -> Algorithm:
    """FedAvg and ensemble distillation; needs examples of the server."""
    size = min(server_batch_size, max(num_public, 1))
    num = server_steps * size
    like = torch.zeros(num_public, num_classes, dtype=float_type(initial))
    ensemble, distillation = ensemble_logits(), ensemble_distillation(like, num)

    def run(server: Tree, rnd: Round) -> Tree:
        uploads, means, logits = rnd.call(server), _models(server), torch.zeros_like(like)
        for place, mean in enumerate(means):
            changes, weights = _of_member(place, uploads)
            models = add(mean, changes)
            if server_steps and len(weights):
                taught = rnd.on_server({**mean, "teachers": models}, ensemble, member=place)
                logits += taught["logits"]
            means[place] = mean_of(models, weights) if len(weights) else mean
        rng, passes = torch_generator(seed, "feddf", rnd.number), range(0, num, num_public or 1)
        orders = [torch.randperm(num_public, generator=rng) for _ in passes]
        teach = partial(rnd.on_server, steps=server_steps, lr=server_lr, batch_size=size)
        for place, mean in enumerate(means if server_steps else []):
            given = {"logits": logits / len(uploads.weights), "rows": torch.cat(orders)[:num]}
            means[place] = add(mean, teach({**mean, **given}, distillation, member=place))
        return {**server, **_server_of(means)}

    return Algorithm(
        name="feddf",
        tasks=("classification",),
        weighting=weighting,
        round=run,
        calls=(ensemble, distillation) if server_steps else (),
        **_of_members(initial, members),
    )


def ensemble_logits() -> ServerCall:
    """A call that gives the sum of the logits [P, C] of `teachers`, each leaf [K, ...]."""

    def logits(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tensor:
        teachers = ctx.server["teachers"]
        models = (one_of(teachers, place) for place in range(len(next(leaves(teachers)))))
        return torch.stack([task.logits(by_name(model), batch) for model in models]).sum(0)

    return of_server(
        "feddf's ensemble",
        lambda weights: {"teachers": tree_map(lambda leaf: leaf[None], weights)},
        stages=(public_logits(logits),),
        finish=lambda done, ctx: ({"logits": measured_logits(ctx)}, ctx.client),
    )


def ensemble_distillation(like: Tensor, num: int) -> ServerCall:
    """A call that minimises KL(softmax of `logits` [P, C], softmax of the model's).

    It takes the server's examples in the order of `rows`, int64 [num]. The optimizer is Adam.
    """

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        rows = ctx.server["rows"][next_places(params, batch, num)]
        student = task.logits(params, public_batch(ctx, rows))
        return task.mean(divergence(student, ctx.server["logits"][rows]))

    return of_server(
        "feddf's distillation",
        lambda weights: {"logits": like, "rows": torch.zeros(num, dtype=torch.int64)},
        stages=(LocalStage(optimizer=torch.optim.Adam),),
        loss=loss,
        separable=False,
    )


def _of_members(initial: Tree, members: Sequence[Tree]) -> dict[str, Any]:
    """Fields of the algorithm of the member with the weights `initial`, perhaps the only one."""
    if len(members) == 1:
        return {"parts": dict.fromkeys(WEIGHTS, ROWS)}
    own = next(place for place, weights in enumerate(members) if weights is initial)
    zeros = {str(place): tree_map(torch.zeros_like, each) for place, each in enumerate(members)}

    def place(upload: Tree, broadcast: Tree) -> Tree:
        placed = zeros | {str(own): upload}
        by_kind = {kind: {k: tree[kind] for k, tree in placed.items()} for kind in WEIGHTS}
        return by_kind | {"member": torch.eye(len(members))[own]}

    return {
        "server_state": lambda weights: _server_of(members),
        "broadcast": lambda server: _models(server)[own],
        "kit": KitFunctions(place=place),
        "parts": dict.fromkeys(WEIGHTS, ROWS) | {"member": ROWS._replace(learned=False)},
        "personal": lambda broadcast, client: model_weights(broadcast),
    }


def _models(server: Tree) -> list[Tree]:
    """The server's models: of the first member, and of the others."""
    return [model_weights(server), *server.get("members", {}).values()]


def _server_of(models: Sequence[Tree]) -> Tree:
    others = {str(place): weights for place, weights in enumerate(models[1:], start=1)}
    return models[0] | ({"members": others} if others else {})


def _of_member(place: int, uploads: Uploads) -> tuple[Tree, Tensor]:
    """Changes [K, ...] of a member's clients, and their weights [K]; K may be 0."""
    rows, weights = model_weights(uploads.rows), uploads.weights
    if "member" not in uploads.rows:
        return rows, weights
    own = uploads.rows["member"][:, place] > 0
    changes = {kind: rows[kind][str(place)] for kind in WEIGHTS}
    return tree_map(itemgetter(own), changes), weights[own]
