"""FedCM: local steps mix the gradient with the server's momentum.

Xu, Wang, Wang, Yao: FedCM: Federated Learning with Client-level Momentum. 2021, Algorithm 2.
https://arxiv.org/abs/2106.10874

    v = alpha * g_k(x) + (1 - alpha) * Delta[t],   x <- x - lr * v,   in K local steps
    Delta[t+1] = mean_k (x[t] - x_k) / (lr * K)
    x[t+1] = x[t] + server_lr * mean_k (x_k - x[t])

Delta starts at 0; the server keeps it, and broadcasts it with the model. In the paper the server
steps by -eta_g * Delta[t+1]: server_lr is eta_g / (lr * K), as it is in popular code. If clients
take different numbers of steps, K is their mean, so that every step weighs the same in Delta;
popular code takes the K of client 0 for all. With momentum, |a|_1 of FedNova replaces K. Buffers
are averaged.
"""

from typing import Literal

from flfast.algorithms.contract import Algorithm, Context, Finished, Part, Uploads, Weighting
from flfast.algorithms.kit.degenerate import degenerate
from flfast.algorithms.kit.local_sgd import gradient_weight_of_sgd
from flfast.state.options import BelowOne, Positive, PositiveUpToOne
from flfast.state.tree import Tree, add, scaled, zeros
from flfast.state.weights import model_weights


def fedcm(
    *,
    alpha: PositiveUpToOne,
    server_lr: Positive,
    weighting: Weighting,
    momentum: BelowOne | None,
    nesterov: bool | None,
    local_optimizer_state: Literal["reset"],
) -> Algorithm:
    """FedAvg with the server's momentum in local steps; alpha = server_lr = 1 is FedAvg.

    `local_optimizer_state` must be `reset`, because |a|_1 assumes that momentum starts at zero.
    """
    gradient_weight = gradient_weight_of_sgd("fedcm", momentum=momentum, nesterov=nesterov)
    degenerate(
        alpha == 1 and server_lr == 1,
        "algorithm.alpha=1 with algorithm.server_lr=1 turns FedCM into FedAvg",
    )

    def correct(grads: Tree, params: Tree, ctx: Context) -> Tree:
        delta = ctx.server["delta"]
        # In parentheses: the product is the same in all steps, and the fused engine hoists it.
        return {n: alpha * grads[n] + ((1 - alpha) * delta[n]) for n in grads if n in delta}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        length = ctx.lr.cpu() * gradient_weight(done.num_steps)  # float64
        return {**ctx.change(done.weights), "length": length}, ctx.client

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean, length = uploads.mean, float(uploads.mean["length"])
        step = {"params": scaled(mean["params"], server_lr), "buffers": mean["buffers"]}
        stepped = add(server, step)
        if length:  # steps of length zero give no estimate of the gradient
            stepped["delta"] = scaled(mean["params"], -1 / length)
        return stepped

    return Algorithm(
        name="fedcm",
        weighting=weighting,
        server_state=lambda weights: {**weights, "delta": zeros(weights["params"])},
        broadcast=lambda server: {**model_weights(server), "delta": server["delta"]},
        correct=correct,
        finish=finish,
        parts={"length": Part(learned=False)},
        server_step=server_step,
    )
