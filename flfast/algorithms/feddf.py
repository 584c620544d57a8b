"""FedDF: after averaging, the server distils the ensemble of the clients' models into the mean.

Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning.
NeurIPS 2020, Algorithms 1 and 3. https://arxiv.org/abs/2006.07242

    x = sum_k n_k / n * x_k
    x := Adam on KL(softmax(mean_k f(x_k, d)), softmax(f(x, d))),   server_steps times

f are logits, d are batches of the server's own examples (`split.server_examples`), whose labels
are not read. With `model=family` the server has a model x of each member. It averages the models
of that member's clients, and all clients teach all of them; the first one is the server's.

Models x_k predict in evaluation mode, once for each example, x in training mode. Adam starts
afresh every round, whatever the optimizer of the clients. The paper takes up to 10,000 steps,
anneals the rate along a cosine and stops early; here their number and the rate are fixed. The
authors' code also clips gradients, and returns the best of the models that it validated. The
server gets the models x_k in rows, so that a robust rule does not act on them.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from flfast.algorithms.contract import (
    Algorithm,
    Batch,
    Context,
    Part,
    Round,
    Task,
    Uploads,
    Weighting,
)
from flfast.algorithms.kit.degenerate import degenerate
from flfast.algorithms.kit.divergence import divergence
from flfast.algorithms.kit.model_groups import mean_of
from flfast.algorithms.kit.public_examples import (
    measured_logits,
    next_places,
    public_batch,
    public_logits,
    with_place,
    without_place,
)
from flfast.algorithms.kit.several_models import one_of
from flfast.state.options import Count, NonNegativeInt, Positive
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, add, float_type, leaves, tree_map
from flfast.state.weights import WEIGHTS, by_name, model_weights


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
    degenerate(server_steps == 0, "algorithm.server_steps=0 turns FedDF into FedAvg")
    size = min(server_batch_size, max(num_public, 1))
    like = torch.zeros(num_public, num_classes, dtype=float_type(initial))
    ensemble = ensemble_logits()
    distillation = ensemble_distillation(like, server_steps * size)

    def run(server: Tree, rnd: Round) -> Tree:
        uploads, means, logits = rnd.call(server), _models(server), torch.zeros_like(like)
        for place, (changes, weights) in enumerate(_by_member(len(means), uploads)):
            if not len(weights):
                continue  # the cohort has no client of this member
            models = add(means[place], changes)
            if server_steps:
                asked = {**means[place], "teachers": models}
                logits += rnd.on_server(asked, ensemble, member=place)["logits"]
            means[place] = mean_of(models, weights)
        if server_steps:
            order = _order(
                num_public, server_steps * size, torch_generator(seed, "feddf", rnd.number)
            )
            teach = partial(rnd.on_server, steps=server_steps, lr=server_lr, batch_size=size)
            given = {"logits": logits / len(uploads.weights), "rows": order}
            for place, mean in enumerate(means):
                change = teach({**mean, **given}, distillation, member=place)
                means[place] = add(mean, change)
        return {**server, **_server_of(means)}

    fields: dict[str, Any] = {"parts": dict.fromkeys(WEIGHTS, Part("rows"))}
    if len(members) > 1:
        fields = _of_family(initial, members)

    return Algorithm(
        name="feddf",
        tasks=("classification",),
        weighting=weighting,
        round=run,
        server_calls=(ensemble, distillation) if server_steps else (),
        **fields,
    )


def ensemble_logits() -> Algorithm:
    """A call that gives the sum of the logits [P, C] of `teachers`, each leaf [K, ...]."""

    def logits(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tensor:
        teachers = ctx.server["teachers"]
        models = (one_of(teachers, place) for place in range(len(next(leaves(teachers)))))
        return torch.stack([task.logits(by_name(model), batch) for model in models]).sum(0)

    return Algorithm(
        name="feddf's ensemble",
        weighting="uniform",
        server_state=lambda weights: {
            **model_weights(weights),
            "teachers": tree_map(lambda leaf: leaf[None], model_weights(weights)),
        },
        broadcast=lambda server: server,
        facts=("public",),
        stages=(public_logits(logits),),
        finish=lambda done, ctx: ({"logits": measured_logits(ctx)}, ctx.client),
    )


def ensemble_distillation(like: Tensor, num: int) -> Algorithm:
    """A call that minimises KL(softmax of `logits` [P, C], softmax of the model's).

    It takes the server's examples in the order of `rows`, int64 [num]. The optimizer is Adam.
    """

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        rows = ctx.server["rows"][next_places(params, batch, num)]
        student = task.logits(params, public_batch(ctx, rows))
        return task.mean(divergence(student, ctx.server["logits"][rows]))

    return Algorithm(
        name="feddf's distillation",
        weighting="uniform",
        server_state=lambda weights: {
            **model_weights(weights),
            "logits": like,
            "rows": torch.zeros(num, dtype=torch.int64),
        },
        broadcast=lambda server: server,
        start=lambda broadcast, client: with_place(model_weights(broadcast)),
        facts=("public",),
        make_optimizer=torch.optim.Adam,
        loss=loss,
        separable=False,
        finish=lambda done, ctx: (without_place(ctx.change(done.weights)), ctx.client),
    )


def _order(num: int, wanted: int, rng: torch.Generator) -> Tensor:
    """Numbers in [0, num) in passes of random order, int64 [wanted]."""
    passes = range(0, wanted, num)
    return torch.cat([torch.randperm(num, generator=rng) for _ in passes])[:wanted]


def _of_family(initial: Tree, members: Sequence[Tree]) -> dict[str, Any]:
    """Fields of the algorithm of the member with the weights `initial`."""
    own = next(place for place, weights in enumerate(members) if weights is initial)

    def place(upload: Tree, broadcast: Tree) -> Tree:
        def placed(kind: str) -> Tree:
            nothing = (tree_map(torch.zeros_like, weights[kind]) for weights in members)
            return {str(k): upload[kind] if k == own else zero for k, zero in enumerate(nothing)}

        mine = torch.eye(len(members), dtype=float_type(upload))[own]
        return {**{kind: placed(kind) for kind in WEIGHTS}, "member": mine}

    return {
        "server_state": lambda weights: _server_of(members),
        "broadcast": lambda server: _models(server)[own],
        "place": place,
        "parts": {
            **dict.fromkeys(WEIGHTS, Part("rows")),
            "member": Part("rows", learned=False),
        },
        "personal": lambda broadcast, client: model_weights(broadcast),
    }


def _models(server: Tree) -> list[Tree]:
    """The server's models: of the first member, and of the others."""
    return [model_weights(server), *server.get("members", {}).values()]


def _server_of(models: Sequence[Tree]) -> Tree:
    others = {str(place): weights for place, weights in enumerate(models) if place}
    return {**models[0], **({"members": others} if others else {})}


def _by_member(num: int, uploads: Uploads) -> Iterator[tuple[Tree, Tensor]]:
    """Changes [K, ...] of the clients of each member, and their weights [K]."""
    rows, weights = model_weights(uploads.rows), uploads.weights
    if num == 1:
        yield rows, weights
        return
    for place in range(num):
        own = uploads.rows["member"][:, place] > 0
        changes = {kind: rows[kind][str(place)] for kind in WEIGHTS}
        yield tree_map(itemgetter(own), changes), weights[own]
