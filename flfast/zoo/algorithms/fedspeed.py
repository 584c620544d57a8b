"""FedSpeed: a corrected proximal term, and gradients mixed with those at a point uphill.

Sun, Shen, Huang, Ding, Tao: FedSpeed: Larger Local Interval, Less Communication Round, and Higher
Generalization Accuracy. ICLR 2023, Algorithm 1. https://arxiv.org/abs/2302.10429

    g = grad F_k(w; batch),   u = grad F_k(w + rho * g / |g|; batch)
    w := w - lr * ((1 - alpha) * g + alpha * u - c_k[t] + (w - w[t]) / lam)
    c_k[t+1] = c_k[t] - (w_k - w[t]) / lam
    w[t+1] = mean_k (w_k - lam * c_k[t+1])

Clients keep c_k, which starts at 0, and send one model each. Buffers are averaged. In the authors'
code alpha is 1, and the server adds -lam times the mean of c over all clients, as FedDyn does. The
length of the ascent step is that code's. The reported loss is the one at w.
"""

from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, Task
from flfast.algorithms.kit.gradient import gradient
from flfast.state.options import NonNegative, Positive, UpToOne
from flfast.state.tree import Tree, tree_map, zeros
from flfast.zoo.algorithms.kit.sharpness_aware import ascended


def fedspeed(*, lam: Positive, rho: NonNegative, alpha: UpToOne) -> Algorithm:
    """Proximal local training with corrections; all clients weigh the same, as in the paper."""

    def mixed(task: Task, params: Tree, batch: Batch, ctx: Context) -> tuple[Tensor, Tree]:
        value, here = gradient(task, params, batch, trained=params)
        point = ascended(params, here, rho=rho, scales={})
        _, uphill = gradient(task, point, batch, trained=params)
        return value, {n: (1 - alpha) * g + alpha * uphill[n] for n, g in here.items()}

    def correct(grads: Tree, params: Tree, ctx: Context) -> Tree:
        start, c = ctx.server["params"], ctx.client["correction"]
        # Parameters that stay on the client (`bn=local`) have no correction.
        shared = [name for name in grads if name in start]
        return {**grads, **{n: grads[n] - c[n] + (params[n] - start[n]) / lam for n in shared}}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        start, old, end = ctx.server["params"], ctx.client["correction"], done.weights["params"]
        c = tree_map(lambda w_t, c, w: c - (w - w_t) / lam, start, old, end)
        sent = {**end, **tree_map(lambda c, w: w - lam * c, c, end)}
        return ctx.change({**done.weights, "params": sent}), {"correction": c}

    return Algorithm(
        name="fedspeed",
        weighting="uniform",
        client_state=lambda broadcast: {"correction": zeros(broadcast["params"])},
        gradient=mixed,
        correct=correct,
        finish=finish,
    )
