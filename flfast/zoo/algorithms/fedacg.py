"""FedACG: clients start from a lookahead along the server's momentum, and stay near it.

Kim, Kim, Han: Communication-Efficient Federated Learning with Accelerated Client Gradient.
CVPR 2024, Algorithm 1. https://arxiv.org/abs/2201.03172

    a[t] = w[t] + lam * m[t]   (the broadcast)
    h_k(w) = F_k(w) + beta / 2 * |w - a[t]|^2,   w_k by local training from a[t]
    m[t+1] = lam * m[t] + mean_k (w_k - a[t]),   m[0] = 0
    w[t+1] = w[t] + m[t+1]

So w[t+1] is the mean of the clients' models, and m[t+1] = w[t+1] - w[t]. The server's model is
evaluated, not the lookahead; with `bn=local` clients have the lookahead only, which is evaluated.
The authors' code has beta instead of beta / 2, and adds momentum to buffers as well; here buffers
are averaged and broadcast as they are.
"""

from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Uploads, Weighting
from flfast.state.options import BelowOne, NonNegative
from flfast.state.tree import Tree, add, scaled, squared_norm, sub, tree_map, zeros


def fedacg(*, lam: BelowOne, beta: NonNegative, weighting: Weighting) -> Algorithm:
    """FedAvg from a lookahead of the server; lam = 0 is FedProx, and with beta = 0 FedAvg."""

    def broadcast(server: Tree) -> Tree:
        ahead = tree_map(lambda m, w: w + lam * m, server["momentum"], server["params"])
        return {"params": {**server["params"], **ahead}, "buffers": server["buffers"]}

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        distance = squared_norm(sub(params, ctx.start["params"]))
        return task(params, batch) + beta / 2 * distance

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        # Clients' changes are those of the lookahead.
        momentum = add(scaled(server["momentum"], lam), uploads.mean["params"])
        return {**add(server, {**uploads.mean, "params": momentum}), "momentum": momentum}

    return Algorithm(
        name="fedacg",
        weighting=weighting,
        server_state=lambda weights: {**weights, "momentum": zeros(weights["params"])},
        broadcast=broadcast,
        loss=loss,
        server_step=server_step,
    )
