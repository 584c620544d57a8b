"""FedALA: clients learn how much of the server's model to take, element by element.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized
Federated Learning. AAAI 2023, equations 2 to 5, Algorithm 1. https://arxiv.org/abs/2212.01197

    v_k = w_k + (w[t] - w_k) * W_k in the last layers,   v_k = w[t] in all others
    W_k := clamp(W_k - eta_W * grad_W F_k(v_k), 0, 1),   on a part of the client's examples
    w_k := SGD on F_k from v_k,   w[t+1] = sum_k n_k / n * w_k

W_k has an entry for each parameter, starts at 1, and stays on the client, as w_k does. Clients
predict with v_k. The paper trains W_k until it converges in a client's second round, and for one
epoch later. Here every round has the same number of epochs.
"""

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, LocalStage, Task
from flfast.algorithms.kit.second_model import (
    personal_part,
    prefixed,
    split_personal,
    with_personal,
)
from flfast.models.adapters.layer_names import layer_of
from flfast.state.options import Count, NonNegativeInt, Positive, PositiveUpToOne
from flfast.state.tree import Tree, merge, tree_map
from flfast.state.weights import model_weights


def fedala(
    *,
    layers: Count,
    share: PositiveUpToOne,
    mix_epochs: NonNegativeInt,
    mix_lr: Positive,
    initial: Tree,
) -> Algorithm:
    """FedAvg whose clients start from a learned mixture of the server's model and their own.

    All layers are mixed if the model has fewer. With `local_steps`, learning W takes that many,
    unless `mix_epochs` is 0.
    """
    last = list(dict.fromkeys(map(layer_of, initial["params"])))[-layers:]
    names = [name for name in initial["params"] if layer_of(name) in last]

    def client_state(server: Tree) -> Tree:
        own = {name: server["params"][name] for name in names}
        return {"own": own, "params": tree_map(torch.ones_like, own), "buffers": {}}

    def mixed(server: Tree, client: Tree, mix: Tree) -> Tree:
        ends = client["own"], server["params"], mix
        return tree_map(lambda w, v, m: torch.lerp(w.to(m), v.to(m), m), *ends)

    def mixing(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        mix = personal_part(params)
        for leaf in mix.values():
            leaf.detach().copy_(leaf.detach().clamp(0, 1))  # the last step may have left [0, 1]
        return task({**params, **mixed(ctx.server, ctx.client, mix)}, batch)

    def begin(weights: Tree, ctx: Context) -> Tree:
        mix = tree_map(lambda leaf: leaf.clamp(0, 1), personal_part(weights["params"]))
        params = {**mixed(ctx.server, ctx.client, mix), **prefixed(mix)}
        return merge(weights, {"params": params, "buffers": ctx.start["buffers"]})

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, mix = split_personal(done.weights)
        return ctx.change(upload), {"own": {name: upload["params"][name] for name in names}, **mix}

    learn = LocalStage([*prefixed(dict.fromkeys(names))], mix_epochs, share, mixing, lr=mix_lr)
    return Algorithm(
        name="fedala",
        client_state=client_state,
        start=with_personal,
        stages=(*[learn] * bool(mix_epochs), LocalStage([*initial["params"]], begin=begin)),
        finish=finish,
        personal=lambda server, client: merge(
            model_weights(server), {"params": mixed(server, client, client["params"])}
        ),
    )
