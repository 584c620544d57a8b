"""q-FedAvg: clients with a larger loss weigh more, so that their accuracies become more equal.

Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning. ICLR 2020,
Algorithm 2. https://arxiv.org/abs/1905.10497

    Delta_k = F_k^q * L * (w - w_k),   L = 1 / lr,   F_k = mean training loss at w
    h_k = q * F_k^(q-1) * |L * (w - w_k)|^2 + L * F_k^q
    w+ = w - sum_k Delta_k / sum_k h_k

F_k is measured in evaluation mode before local training; some popular code sums the losses along
training instead. As in the authors' code, it is at least 1e-10.

Clients upload w_k, which weighs F_k^q, and s_k = h_k / (L * F_k^q). This is the same step:
w+ = w + (mean_k w_k - w) / mean_k s_k. Buffers are averaged with these weights. Robust rules that
ignore weights, such as the median, ignore F_k^q. `upload_clip_norm` does not change s_k.
"""

import torch

from flfast.algorithms.contract import Algorithm, Context, Finished, LocalStage, Part, Uploads
from flfast.algorithms.kit.measures import LOSS, mean_loss
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, add, scaled, squared_norm, sub


def q_fedavg(*, q: NonNegative) -> Algorithm:
    """Fair federated averaging; q = 0 is FedAvg with uniform weights."""

    def loss_before(ctx: Context) -> float:
        return max(float(mean_loss(ctx)), 1e-10)  # losses of 0 have no powers below 0

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        length = float(squared_norm(sub(ctx.server["params"], done.weights["params"])))
        lr = float(ctx.lr)
        scale = 1 + q * length / (lr * loss_before(ctx)) if lr else 1.0
        sent = torch.tensor(scale, dtype=torch.float64)
        return {**ctx.change(done.weights), "scale": sent}, ctx.client

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean, step = uploads.mean, 1 / float(uploads.mean["scale"])
        return add(server, {"params": scaled(mean["params"], step), "buffers": mean["buffers"]})

    return Algorithm(
        name="q_fedavg",
        weighting=lambda done, ctx: loss_before(ctx) ** q,
        facts=("examples",),
        stages=(LOSS, LocalStage()),
        finish=finish,
        parts={"scale": Part(learned=False)},
        server_step=server_step,
    )
