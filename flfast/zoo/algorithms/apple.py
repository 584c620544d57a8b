"""APPLE: a client's model is a learned combination of the core models of all clients.

Luo, Wu: Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning. IJCAI
2022, Algorithm 1. https://arxiv.org/abs/2110.08394

    v_k = sum_j p_kj * w_j,   h_k = F_k(v_k) + mu * lambda(t) * |p_k - p_0|^2
    w_k := w_k - lr * grad_{w_k} h_k,   p_k := p_k - p_lr * lr * grad_{p_k} h_k
    lambda(t) = 0.001^((t - 1) / L) for t <= L, and 0 later,   L = share * rounds

w_j with j != k are those that j uploaded last; p_k stays on the client. The authors have p_0 by
the clients' sizes, here it is 1 / N. PFLlib uploads v_k, and its gradient of p_k has means in
place of sums. p_lr is a factor of the gradient, exact for SGD.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, Records, Task
from flfast.state.options import Count, NonNegative, UpToOne
from flfast.state.tree import Tree, float_type, merge, tree_map, without
from flfast.zoo.algorithms.kit.private_models import private_models

RELATIONS = "apple/relations"
"""Name of the learned weights [N]; no module can have it."""


def apple(
    *,
    mu: NonNegative,
    share: UpToOne,
    p_lr: NonNegative,
    horizon: Count,
    initial: Tree,
    num_clients: int,
) -> Algorithm:
    """Personal models, combined with learned weights from core models."""
    first, last = next(iter(initial["params"].values())), share * horizon
    equal = first.new_full((num_clients,), 1 / num_clients, dtype=float_type(initial["params"]))

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        p, done = params[RELATIONS], ctx.facts["round"] - 1
        strength = torch.where(done < last, mu * 0.001 ** (done / max(last, 1)), 0.0).to(p)
        pull = strength * (p - equal.to(p)).square().sum()
        return task(combined(params, p, ctx.server), batch) + pull

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        core = without(done.weights, {"params": {RELATIONS: ...}})
        upload, state = private.finish(done._replace(weights=core), ctx)
        return upload, {**state, "p": done.weights["params"][RELATIONS]}

    private = private_models("apple", initial, known=own_core)
    return replace(
        private,
        client_state=lambda broadcast: {"own": initial, "p": equal},
        send=lambda server, records, clients: core_models(records, clients, num_clients),
        start=lambda broadcast, client: merge(client["own"], {"params": {RELATIONS: client["p"]}}),
        facts=("round",),
        loss=loss,
        correct=lambda grads, params, ctx: {**grads, RELATIONS: p_lr * grads[RELATIONS]},
        finish=finish,
        personal=combination,
    )


def core_models(records: Records, clients: Sequence[int], num_clients: int) -> Tree:
    """The download of K clients. Its models are views of one copy."""
    models, shape = records[range(num_clients)]["params"], (len(clients), num_clients)
    return {
        "own": F.one_hot(torch.tensor(clients), num_clients).to(float_type(models)),
        "models": tree_map(lambda leaf: leaf.expand(*shape, *leaf.shape[1:]), models),
    }


def combined(params: Tree, relations: Tensor, download: Tree) -> Tree:
    """Parameters, with the sum of the core models by their weights, the client's own included.

    Args:
        params: with the client's own core model.
        relations: weights [N].
        download: the core `models` of all clients, each leaf [N, ...], and `own`, the client as
            a one-hot vector [N].
    """
    own = download["own"].to(relations)
    others, mine = relations * (1 - own), (relations * own).sum()
    models: Tree = download["models"]
    sums = {n: torch.tensordot(others.to(m), m, 1) + mine * params[n] for n, m in models.items()}
    return {**params, **sums}


def own_core(download: Tree) -> Tree:
    """The core model that the server has of the client."""
    own, models = download["own"], download["models"]
    return {"params": tree_map(lambda leaf: torch.tensordot(own.to(leaf), leaf, 1), models)}


def combination(download: Tree, client: Tree) -> Tree:
    """The combination that a client keeps: its `own` core model and its weights `p`."""
    own: Tree = client["own"]
    return {**own, "params": combined(own["params"], client["p"], download)}
