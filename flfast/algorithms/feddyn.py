"""FedDyn: a dynamic regulariser aligns the local optima with the global one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic
Regularization. ICLR 2021, Algorithm 1. https://arxiv.org/abs/2111.04263

    w_k[t+1] = argmin_w  F_k(w) - <g_k[t], w> + alpha / 2 * |w - w[t]|^2   (by local training)
    g_k[t+1] = g_k[t] - alpha * (w_k[t+1] - w[t])
    h[t+1]   = h[t] - alpha / population * sum_k (w_k[t+1] - w[t])
    w[t+1]   = mean_k w_k[t+1] - h[t+1] / alpha

Clients keep g_k and the server keeps h; both start at 0. Only models are sent. Buffers are
averaged.
"""

from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, Part, Task, Uploads
from flfast.state.options import Positive
from flfast.state.tree import Tree, add, dot, squared_norm, sub, tree_map, zeros


def feddyn(*, alpha: Positive) -> Algorithm:
    """Dynamic regularisation; all clients weigh the same, as in the paper.

    As alpha -> 0, local training becomes FedAvg's, but the server step does not: it still adds the
    sum of all previous mean updates.
    """

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        gradient, start = ctx.client["gradient"], ctx.server["params"]
        distance = squared_norm(sub(start, params))
        return task(params, batch) - dot(gradient, params) + alpha / 2 * distance

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        start, end = ctx.server["params"], done.weights["params"]
        # Over shared parameters; wrappers may keep others local.
        g = tree_map(lambda w_t, w, g: g - alpha * (w - w_t), start, end, ctx.client["gradient"])
        return ctx.change(done.weights), {"gradient": g}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean = uploads.mean["params"]
        share = uploads.num_clients / uploads.population
        h = tree_map(lambda h, d: h - alpha * share * d, server["h"], mean)
        step = tree_map(lambda d, h: d - h / alpha, mean, h)
        return {**add(server, {**uploads.mean, "params": step}), "h": h}

    return Algorithm(
        name="feddyn",
        weighting="uniform",
        server_state=lambda weights: {**weights, "h": zeros(weights["params"])},
        client_state=lambda broadcast: {"gradient": zeros(broadcast["params"])},
        loss=loss,
        finish=finish,
        parts={"params": Part(stale="keep")},
        server_step=server_step,
    )
