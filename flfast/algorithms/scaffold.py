"""SCAFFOLD: control variates correct the drift of local training.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020, Algorithm 1, option II. https://arxiv.org/abs/1910.06378

    y <- y - lr * (g_k(y) - c_k + c),   from y = x, in K local steps
    c_k+ = c_k - c + (x - y) / (K * lr)
    x+ = x + server_lr * mean_k (y_k - x)
    c+ = c + 1 / population * sum_k (c_k+ - c_k)

Clients keep c_k and the server keeps c; both start at 0. The server broadcasts c with the model,
and clients upload c_k - c_k+. With momentum, |a|_1 of FedNova replaces K, so that c_k remains a
mean of gradients. Buffers are averaged.
"""

from typing import Literal

import torch

from flfast.algorithms.contract import Algorithm, Context, Finished, Part, Uploads
from flfast.algorithms.kit.local_sgd import gradient_weight_of_sgd
from flfast.state.options import BelowOne, Positive
from flfast.state.tree import Tree, add, scaled, tree_map, zeros
from flfast.state.weights import model_weights


def scaffold(
    *,
    server_lr: Positive,
    momentum: BelowOne | None,
    nesterov: bool | None,
    local_optimizer_state: Literal["reset"],
) -> Algorithm:
    """Variance-reduced local training; all clients weigh the same, as in the paper.

    `local_optimizer_state` must be `reset`, because |a|_1 assumes that momentum starts at zero.
    """
    gradient_weight = gradient_weight_of_sgd("scaffold", momentum=momentum, nesterov=nesterov)

    def correct(grads: Tree, params: Tree, ctx: Context) -> Tree:
        c_k, c = ctx.client["control"], ctx.server["control"]
        # In parentheses: the difference is the same in all steps, and the fused engine hoists it.
        return {name: grads[name] + (c[name] - c_k[name]) for name in grads if name in c}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        c_k, c, change = ctx.client["control"], ctx.server["control"], ctx.change(done.weights)
        if not ctx.lr:  # steps of length zero give no estimate of the gradient
            return {**change, "control": zeros(c)}, ctx.client
        scale = 1 / (gradient_weight(done.num_steps) * float(ctx.lr))
        # c_k - c_k+ = c - (x - y) / (K * lr) is common to upload and state, and computed once.
        moved = change["params"]
        decrease = tree_map(lambda c, d: torch.add(c, d, alpha=scale), c, moved)
        control = tree_map(lambda d, c: c - d, decrease, c_k)  # over shared parameters
        return {**change, "control": decrease}, {"control": control}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean, share = uploads.mean, uploads.num_clients / uploads.population
        params, control = scaled(mean["params"], server_lr), scaled(mean["control"], -share)
        return add(server, {**mean, "params": params, "control": control})

    return Algorithm(
        name="scaffold",
        weighting="uniform",
        server_state=lambda weights: {**weights, "control": zeros(weights["params"])},
        client_state=lambda broadcast: {"control": zeros(broadcast["params"])},
        broadcast=lambda server: {**model_weights(server), "control": server["control"]},
        correct=correct,
        finish=finish,
        parts={"control": Part(stale="keep")},
        server_step=server_step,
    )
