"""FedEM: every client's distribution is a mixture of M, and so is its model, of M shared ones.

Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture of
Distributions. NeurIPS 2021, equations 9 and 10, Algorithm 1. https://arxiv.org/abs/2108.10252

    q_k(m | x, y) ~ pi_k[m] * exp(-loss of w_m[t] at (x, y)),   sum_m q_k(m | x, y) = 1
    pi_k := mean of q_k over the client's examples
    w_km = local training from w_m[t] on mean q_k(m | x, y) * loss of w_m at (x, y)
    w_m[t+1] = sum_k n_k / n * w_km,   client k predicts sum_m pi_k[m] * softmax(f_m(x))

q_k has the pi_k before it, and is computed in evaluation mode; every local step computes that of
its batch anew. pi_k is 1 / M until a client takes part; the authors' code has q_k of clients that
never train, too. It draws the initial models independently; `several` derives them. Its server
averages over all clients, of which those outside the cohort have w_m[t].
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import (
    Algorithm,
    Batch,
    Context,
    Finished,
    LocalStage,
    Measure,
    Task,
    Weighting,
)
from flfast.algorithms.kit.several_models import one_of, several
from flfast.state.options import Count, UpToOne
from flfast.state.tree import Tree, float_type, merge
from flfast.state.weights import by_name, model_weights

PI = "fedem/pi"
"""Name of pi_k beside the parameters of a personal model."""


def fedem(*, num_components: Count, spread: UpToOne, weighting: Weighting, seed: int) -> Algorithm:
    """FedAvg of several models, which clients mix in proportions of their own."""

    def server_state(weights: Tree) -> Tree:
        models = several(weights, num_components, spread=spread, seed=seed)
        return {**weights, **_side_by_side([one_of(models, m) for m in range(num_components)])}

    def client_state(broadcast: Tree) -> Tree:
        dtype = float_type(broadcast["params"])
        return {"pi": torch.full((num_components,), 1 / num_components, dtype=dtype)}

    return Algorithm(
        name="fedem",
        tasks=("classification",),
        weighting=weighting,
        evaluate_server=False,
        server_state=server_state,
        client_state=client_state,
        facts=("examples",),
        stages=(Measure("pi", _summed_responsibilities), LocalStage()),
        loss=loss,
        finish=finish,
        personal=personal,
        predict=predict,
    )


def responsibilities(task: Task, batch: Batch, ctx: Context) -> Tensor:
    """q_k(m | x, y) of the examples of a batch, [M, B], by the models that the client received."""
    models = _models(by_name(ctx.start), ctx.client["pi"])
    losses = _losses([task.fixed_logits(model, batch) for model in models], batch)
    return (ctx.client["pi"].to(losses).log()[:, None] - losses).softmax(0)


def _summed_responsibilities(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tree:
    return {"sums": responsibilities(task, batch, ctx).sum(1)}


def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
    """Mean over examples of sum_m q_k(m | x, y) * loss of w_m."""
    models = _models(params, ctx.client["pi"])
    losses = _losses([task.logits(model, batch) for model in models], batch)
    return task.mean((responsibilities(task, batch, ctx).to(losses) * losses).sum(0))


def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
    """Changes of all models, and pi_k."""
    pi = ctx.measured["pi"]["sums"] / ctx.facts["examples"]
    return ctx.change(done.weights), {"pi": pi.to(ctx.client["pi"].dtype)}


def personal(broadcast: Tree, client: Tree) -> Tree:
    """All models, with the client's pi_k for `predict`."""
    return merge(model_weights(broadcast), {"params": {PI: client["pi"]}})


def predict(task: Task, weights: Tree, batch: Batch) -> Tensor:
    """The logarithm of sum_m pi_k[m] * softmax(f_m(x)) [B, C]."""
    logs = [task.logits(model, batch).log_softmax(1) for model in _models(weights, weights[PI])]
    pi = weights[PI].to(logs[0]).log()
    return torch.stack([pi[m] + log for m, log in enumerate(logs)]).logsumexp(0)


def _side_by_side(models: list[Tree]) -> Tree:
    """All models in one tree; the first one has the names of the run's model."""
    joint = model_weights(models[0])
    for place, model in enumerate(models[1:], start=1):
        own = {
            kind: {f"{place}/{name}": leaf for name, leaf in part.items()}
            for kind, part in model.items()
        }
        joint = merge(joint, own)
    return joint


def _models(weights: Tree, pi: Tensor) -> Iterator[Tree]:
    """Every model by the names of the run's model, as many as `pi` has shares.

    Leaves that a wrapper keeps on the client are in the first model only; all models share them.
    """
    yield weights
    for prefix in (f"{place}/" for place in range(1, len(pi))):
        own = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
        yield {**weights, **own}


def _losses(logits: list[Tensor], batch: Batch) -> Tensor:
    """Losses [M, B] of logits [B, C] of each model."""
    return torch.stack([F.cross_entropy(z, batch.targets, reduction="none") for z in logits])
