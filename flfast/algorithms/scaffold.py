"""SCAFFOLD: control variates take the drift of local training away.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020, Algorithm 1, option II. https://arxiv.org/abs/1910.06378

    y <- y - lr * (g_k(y) - c_k + c),   from y = x, in K local steps
    c_k+ = c_k - c + (x - y) / (K * lr)
    x+ = x + server_lr * mean_k (y_k - x)
    c+ = c + 1 / population * sum_k (c_k+ - c_k)

Clients keep c_k, the server c; both start at 0, and c travels with the model both ways. With
momentum, |a|_1 stands for K: c_k remains a mean of gradients. Buffers are averaged.
"""

from typing import Literal

import torch

from flfast.algorithms.algorithm import Algorithm, Context, Finished, Uploads
from flfast.algorithms.local_sgd import weight_of_steps
from flfast.options import Portion, Positive
from flfast.state.tree import Tree, move, tree_map, zeros


def scaffold(
    *,
    server_lr: Positive,
    momentum: Portion | None,
    nesterov: bool | None,
    local_optimizer_state: Literal["reset"],
) -> Algorithm:
    """Variance-reduced local training; every client weighs the same, as in the paper.

    Args:
        server_lr: of the server's step, > 0.
        momentum: of the local optimizer, in [0, 1); None is refused, since that is not SGD.
        nesterov: whether that is Nesterov's.
        local_optimizer_state: |a|_1 holds for an optimizer that starts fresh.
    """
    weigh = weight_of_steps("scaffold", momentum=momentum, nesterov=nesterov)

    def correct(grads: Tree, params: Tree, ctx: Context) -> Tree:
        own, common = ctx.client["control"], ctx.server["control"]
        # The difference is the same in all steps.
        return {name: grads[name] + (common[name] - own[name]) for name in grads if name in common}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        weight = weigh(done.num_steps)
        own, common = ctx.client["control"], ctx.server["control"]
        lr = float(ctx.lr)
        if not lr:  # a step of no length says nothing about gradients
            return {**done.weights, "control": zeros(common)}, ctx.client
        # c - (x - y) / (K * lr), by which c_k falls, in two passes over memory.
        fall = tree_map(
            lambda c, x, y: torch.add(c, y - x, alpha=1 / (weight * lr)),
            *(common, ctx.server["params"], done.weights["params"]),
        )
        control = tree_map(lambda f, c: c - f, fall, own)  # of what is shared
        return {**done.weights, "control": fall}, {"control": control}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean, share = uploads.mean, uploads.num_clients / uploads.population
        params = move(server["params"], mean["params"], server_lr)
        control = tree_map(lambda c, fall: c - share * fall, server["control"], mean["control"])
        return {**server, **mean, "params": params, "control": control}

    return Algorithm(
        name="scaffold",
        weighting="uniform",
        server_state=lambda weights: {**weights, "control": zeros(weights["params"])},
        client_state=lambda broadcast: {"control": zeros(broadcast["params"])},
        broadcast=lambda server: {k: server[k] for k in ("params", "buffers", "control")},
        correct=correct,
        finish=finish,
        server_step=server_step,
    )
