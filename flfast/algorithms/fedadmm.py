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

from flfast.algorithms.contract import Algorithm, Context, Finished, Part, Uploads
from flfast.state.options import Positive
from flfast.state.tree import Tree, add, scaled, tree_map, zeros


def fedadmm(*, rho: Positive, server_lr: Positive, initial: Tree) -> Algorithm:
    """Local training with dual variables; all clients weigh the same, as in the paper."""

    def correct(grads: Tree, params: Tree, ctx: Context) -> Tree:
        theta, y = ctx.server["params"], ctx.client["dual"]
        # Parameters that stay on the client (`bn=local`) have no dual variable.
        shared = [name for name in grads if name in theta]
        return {**grads, **{n: grads[n] + y[n] + rho * (params[n] - theta[n]) for n in shared}}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        theta, client, w = ctx.server["params"], ctx.client, done.weights["params"]
        y = tree_map(lambda t, w, y: y + rho * (w - t), theta, w, client["dual"])
        # (y_k+ - y_k) / rho is w_k+ - theta.
        sent = tree_map(lambda t, w, old: (w - old) + (w - t), theta, w, client["model"])
        return {**ctx.change(done.weights), "params": sent}, {"dual": y, "model": w}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        share = server_lr * uploads.num_clients / uploads.population
        return add(server, {**uploads.mean, "params": scaled(uploads.mean["params"], share)})

    first = {"dual": zeros(initial["params"]), "model": initial["params"]}
    return Algorithm(
        name="fedadmm",
        weighting="uniform",
        client_state=lambda broadcast: first,
        correct=correct,
        finish=finish,
        parts={"params": Part(stale="keep")},
        server_step=server_step,
    )
