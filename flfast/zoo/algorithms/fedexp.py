"""FedExP: the server extrapolates beyond the mean, further where the updates of clients disagree.

Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023,
Algorithm 1. https://arxiv.org/abs/2301.09604

    Delta_k = w_k[t+1] - w[t],   M clients in the cohort
    eta_g = max(1, sum_k |Delta_k|^2 / (2 * M * (|mean_k Delta_k|^2 + epsilon)))
    w[t+1] = w[t] + eta_g * mean_k Delta_k

The paper evaluates the mean of the last two iterates; here w[t+1] is evaluated. The authors' code
adds M * epsilon instead of epsilon, lets epsilon decay with the squared learning rate, and weighs
clients by size (`samples`). Buffers are averaged as in FedAvg.
"""

import torch

from flfast.algorithms.contract import Algorithm, Context, Finished, Part, Uploads, Weighting
from flfast.state.options import Positive
from flfast.state.tree import Tree, add, scaled, squared_norm, sub


def fedexp(*, epsilon: Positive, weighting: Weighting, clip_norm: Positive | None) -> Algorithm:
    """FedAvg with an adaptive server learning rate >= 1; FedAvg for a large epsilon.

    `clip_norm` must be None: the norms are those before clipping, and would undo it.
    """
    if clip_norm is not None:
        raise ValueError(
            f"algorithm=fedexp computes its server learning rate from the norms of updates, which "
            f"upload_clip_norm={clip_norm} changes; use upload_clip_norm=null"
        )

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        length = float(squared_norm(sub(ctx.server["params"], done.weights["params"])))
        # A count: distances of aggregation rules must not include it, and a median is robust.
        sent = torch.tensor(length, dtype=torch.float64)
        return {**ctx.change(done.weights), "length": sent}, ctx.client

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean = uploads.mean
        mean_update = float(squared_norm(mean["params"]))
        server_lr = float(mean["length"]) / (2 * (mean_update + epsilon))
        step = scaled(mean["params"], max(1.0, server_lr))
        return add(server, {"params": step, "buffers": mean["buffers"]})

    return Algorithm(
        name="fedexp",
        weighting=weighting,
        finish=finish,
        parts={"length": Part(learned=False)},
        server_step=server_step,
    )
