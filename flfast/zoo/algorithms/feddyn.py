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

from dataclasses import replace

from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Task
from flfast.state.options import Positive
from flfast.state.tree import Tree, dot, squared_norm, sub
from flfast.zoo.algorithms.kit.dynamic_regulariser import dynamic_regulariser


def feddyn(*, alpha: Positive) -> Algorithm:
    """Dynamic regularisation; all clients weigh the same, as in the paper.

    As alpha -> 0, local training becomes FedAvg's, but the server step does not: it still adds the
    sum of all previous mean updates.
    """

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        gradient, start = ctx.client["gradient"], ctx.server["params"]
        distance = squared_norm(sub(start, params))
        return task(params, batch) - dot(gradient, params) + alpha / 2 * distance

    # The regulariser is part of the loss, so that it is reported.
    return replace(dynamic_regulariser("feddyn", alpha=alpha), loss=loss, correct=None)
