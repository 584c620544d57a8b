"""FedADMM: clients minimise augmented Lagrangians, and the server tracks their mean.

Gong, Li, Freris: FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System
Heterogeneity. ICDE 2022. https://arxiv.org/abs/2204.03529

    w_k+ = argmin_w  F_k(w) + <y_k, w - theta> + rho / 2 * |w - theta|^2   (by local training)
    y_k+ = y_k + rho * (w_k+ - theta)
    theta+ = theta + server_lr / population * sum_k (w_k+ - w_k + (y_k+ - y_k) / rho)

Clients keep w_k, which starts as the initial model, and y_k, which starts at 0. They send one
model each. With server_lr = 1, theta is the mean of w_k + y_k / rho over all clients, as ADMM has
it: the paper's eta is server_lr times the share of clients that take part. Local training starts
from theta, as in the authors' code. That code also subtracts theta instead of w_k, so that a step
is 2 * (w_k+ - theta), and has eta = 1. Buffers are averaged.
"""

from dataclasses import replace

from flfast.algorithms.contract import Algorithm, Context, Finished, Uploads
from flfast.state.options import Positive
from flfast.state.tree import Tree, add, scaled, tree_map
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.dynamic_regulariser import dynamic_regulariser


def fedadmm(*, rho: Positive, server_lr: Positive, initial: Tree) -> Algorithm:
    """Local training with dual variables; all clients weigh the same, as in the paper."""
    lagrangian = dynamic_regulariser("fedadmm", alpha=rho)  # its `gradient` is -y_k

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, state = lagrangian.finish(done, ctx)
        theta, w = ctx.server["params"], done.weights["params"]
        # (y_k+ - y_k) / rho is w_k+ - theta.
        sent = tree_map(lambda t, w, old: (w - old) + (w - t), theta, w, ctx.client["model"])
        return {**upload, "params": sent}, {**state, "model": w}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        share = server_lr * uploads.num_clients / uploads.population
        return add(server, {**uploads.mean, "params": scaled(uploads.mean["params"], share)})

    return replace(
        lagrangian,
        server_state=model_weights,
        client_state=lambda b: {**lagrangian.client_state(b), "model": initial["params"]},
        finish=finish,
        server_step=server_step,
    )
