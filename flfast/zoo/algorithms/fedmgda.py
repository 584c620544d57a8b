"""FedMGDA+: the server's step is the shortest average of updates of length one.

Hu, Shaloudegi, Zhang, Yu: Federated Learning Meets Multi-Objective Optimization. IEEE Transactions
on Network Science and Engineering, 2022, Algorithm 1. https://arxiv.org/abs/2006.11489

    g_k = (w[t] - w_k) / |w[t] - w_k|
    lambda = argmin |sum_k lambda_k * g_k|^2
             over lambda >= 0, sum_k lambda_k = 1, |lambda - lambda_0|_inf <= epsilon
    w[t+1] = w[t] - server_lr * sum_k lambda_k * g_k

lambda_0 are the weights of FedAvg. If updates are gradients and epsilon is 1, the step raises no
client's loss to first order. Clients that did not move have g_k = 0. The server needs the updates
one by one, so a robust rule can only leave clients out. Buffers are averaged with lambda_0.
"""

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Part, Uploads, Weighting
from flfast.state.options import Positive, UpToOne
from flfast.state.tree import Tree, add, leaves, tree_map
from flfast.zoo.algorithms.kit.min_norm import min_norm_weights


def fedmgda(*, epsilon: UpToOne, server_lr: Positive, weighting: Weighting) -> Algorithm:
    """FedAvg whose server step harms as few clients as possible."""

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        rows = uploads.rows["params"]
        changes = tree_map(lambda x: x.double().reshape(len(x), -1), rows)
        products = torch.stack([change @ change.T for change in leaves(changes)]).sum(0)
        lengths = products.diagonal().sqrt()
        inverse = torch.where(lengths > 0, 1 / lengths, 0)
        cosines = products * inverse * inverse.unsqueeze(1)
        weights = min_norm_weights(cosines, uploads.weights / uploads.weights.sum(), epsilon)
        factors = server_lr * weights * inverse

        def step(change: Tensor, rows: Tensor) -> Tensor:
            moved = (factors @ change).view_as(rows[0])
            return moved.to(torch.promote_types(rows.dtype, torch.float32))

        return add(server, {**uploads.mean, "params": tree_map(step, changes, rows)})

    return Algorithm(
        name="fedmgda",
        weighting=weighting,
        parts={"params": Part("rows")},
        server_step=server_step,
    )
