"""FedDBE: FedAvg whose clients keep the bias of their features in a vector of their own.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan: Eliminating Domain Bias for Federated Learning in
Representation Space. NeurIPS 2023, Algorithm 1. https://arxiv.org/abs/2311.14975

    h_k(w, b_k) = mean_i CE(head(z_i + b_k), y_i) + kappa * |m_k - M|^2 / (2 * D)
    m_k := (1 - mu) * m_k + mu * mean_i z_i,   from m_k = 0 in every round

z are features before the head [D], i are examples of a batch. b_k stays on the client, from 0 on.
M is the mean of the last m_k of round 1, which has neither b_k nor kappa. In the paper all clients
train for M before the rounds, and forget the weights. Dividing by D is the authors' code's.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Context, Finished, Task, Uploads, Weighting
from flfast.algorithms.kit.last_layer import linear_head
from flfast.datamodules.batches import Batch
from flfast.state.options import NonNegative, PositiveUpToOne
from flfast.state.tree import Tree, add, merge, part_of, without
from flfast.state.weights import model_weights


def feddbe(
    *,
    kappa: NonNegative,
    mu: PositiveUpToOne,
    head: list[str] | None,
    weighting: Weighting,
    initial: Tree,
) -> Algorithm:
    """FedAvg with a personal bias of features, whose mean is pulled to a consensus."""
    top = linear_head(initial, head, with_bias=True)
    zero = torch.zeros_like(initial["params"][top.names[0]][0])
    bias, mean = {"params": {".bias": zero}}, {"buffers": {".mean": zero}}

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z = top.features(task, params, batch)
        known, m_k = ctx.server["known"].to(z), (1 - mu) * params[".mean"] + mu * z.mean(0)
        params[".mean"].copy_(m_k.detach())
        far = known * (m_k - ctx.server["consensus"]).square().mean() / 2
        logits = top.logits(params, z + known * params[".bias"])
        return F.cross_entropy(logits, batch.targets) + kappa * far

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        m_k = (1 - ctx.server["known"]) * done.weights["buffers"][".mean"]
        upload = {**ctx.change(without(done.weights, {**bias, **mean})), "consensus": m_k}
        return upload, part_of(done.weights, bias)

    def step(server: Tree, uploads: Uploads) -> Tree:
        found = (1 - server["known"]) * uploads.mean["consensus"]
        return {**add(server, {**uploads.mean, "consensus": found}), "known": zero.new_ones(())}

    return Algorithm(
        name="feddbe",
        tasks=("classification",),
        weighting=weighting,
        server_state=lambda weights: {**weights, "consensus": zero, "known": zero.new_zeros(())},
        client_state=lambda broadcast: bias,
        broadcast=lambda server: server,
        start=lambda broadcast, client: merge(model_weights(broadcast), {**client, **mean}),
        loss=loss,
        separable=False,
        finish=finish,
        server_step=step,
        personal=lambda broadcast, client: top.with_offset(broadcast, client["params"][".bias"]),
    )
