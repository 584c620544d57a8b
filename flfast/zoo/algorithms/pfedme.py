"""pFedMe: FedAvg on Moreau envelopes of the clients' losses; their minimisers are personal.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020,
Algorithm 1. https://arxiv.org/abs/2006.08848

    theta := theta - personal_lr * (grad F_k(theta; batch) + lam * (theta - w_k)),   K times
    w_k := w_k - eta * lam * (w_k - theta)
    w[t+1] = (1 - beta) * w[t] + beta * mean_k w_k

theta carries over from batch to batch, as in the authors' code, which has eta = 0.005
(`optimizer.lr`) and weighs clients by samples.
"""

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Context, Finished, Task, Uploads, Weighting
from flfast.algorithms.kit.gradient import gradient
from flfast.algorithms.kit.second_model import personal_part, prefixed, split_personal
from flfast.datamodules.batches import Batch
from flfast.state.options import Count, Positive
from flfast.state.tree import Tree, add, scaled, tree_map
from flfast.state.weights import model_weights


def pfedme(
    *,
    lam: Positive,
    inner_steps: Count,
    personal_lr: Positive,
    beta: Positive,
    weighting: Weighting,
) -> Algorithm:
    """Personal models minimise the local loss near the client's copy of the server's model."""

    def start(broadcast: Tree, client: Tree) -> Tree:
        theta = prefixed(broadcast["params"])
        return {"params": broadcast["params"], "buffers": {**broadcast["buffers"], **theta}}

    def envelope(task: Task, params: Tree, batch: Batch, ctx: Context) -> tuple[Tensor, Tree]:
        stored = personal_part(params)
        w = {name: params[name] for name in stored}
        theta = tree_map(torch.clone, stored)
        for _ in range(inner_steps):
            value, grads = gradient(task, theta, batch, trained=w)
            for name, grad in grads.items():
                proximal = lam * (theta[name] - w[name].detach())
                theta[name] = theta[name] - personal_lr * (grad + proximal)
        tree_map(lambda buffer, new: buffer.detach().copy_(new), stored, theta)
        return value, {n: lam * (w[n] - theta[n]).detach() for n in grads}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, personal = split_personal(done.weights)
        return ctx.change(upload), {"params": personal["buffers"], "buffers": upload["buffers"]}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        return add(server, {**uploads.mean, "params": scaled(uploads.mean["params"], beta)})

    return Algorithm(
        name="pfedme",
        weighting=weighting,
        client_state=model_weights,
        start=start,
        gradient=envelope,
        finish=finish,
        server_step=server_step,
        personal=lambda broadcast, client: client,
    )
