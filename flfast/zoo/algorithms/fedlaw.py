"""FedLAW: the server learns the weights of the mean, and their sum, on its own examples.

Li, Lin, Shang, Wu: Revisiting Weighted Aggregation in Federated Learning with Neural Networks.
ICML 2023, equation 4. https://arxiv.org/abs/2302.10911

    w(x, y) = exp(y) * sum_k softmax(x)_k * w_k
    x, y := Adam on the loss of w(x, y), server_steps times, from x_k = log n_k and y = 0
    w[t+1] = w(x, y)

Batches are of the server's own examples (`split.server_examples`). Adam, with betas 0.5 and
0.999, starts afresh every round, whatever the optimizer of the clients. The rate is fixed; in the
authors' code it is halved after 20 epochs, which is as many as it takes. There the examples are of
the test set. Buffers are averaged, and go on as these steps change them. The server gets the
models w_k in rows, so that a robust rule does not act on them.
"""

from collections.abc import Collection
from functools import partial

import torch
from torch import Tensor

from flfast.algorithms.contract.algorithm import Algorithm, Round, ServerCall
from flfast.algorithms.contract.client import Context, LocalStage, Task
from flfast.algorithms.contract.uploads import Part
from flfast.datamodules.batches import Batch
from flfast.state.options import Count, Positive
from flfast.state.tree import Tree, add, float_type, merge, part_of, tree_map
from flfast.state.weights import model_weights

X, Y = "fedlaw/x", "fedlaw/y"
"""Names of x, of all clients, and of y among the trained parameters."""


def fedlaw(
    *,
    server_steps: Count,
    server_lr: Positive,
    server_batch_size: Count,
    num_clients: int,
    frozen: Collection[str] = (),
) -> Algorithm:
    """FedAvg with learned weights; needs examples of the server."""
    fit = weight_fit(num_clients)

    def run(server: Tree, rnd: Round) -> Tree:
        uploads = rnd.call(server)
        like = model_weights(server)
        mean = add(like, {"buffers": uploads.mean["buffers"]})
        changes = {n: leaf for n, leaf in uploads.rows["params"].items() if n not in frozen}
        models = add(part_of(server["params"], changes), changes)
        x = torch.zeros(num_clients, dtype=float_type(models))
        x[uploads.clients] = uploads.weights.log().to(x.dtype)
        sent = {**mean, "models": models, "x": x, "clients": uploads.clients}
        change = rnd.on_server(
            sent, fit, steps=server_steps, lr=server_lr, batch_size=server_batch_size
        )
        fitted = x + change["params"][X]
        params = mixture(models, fitted[uploads.clients], change["params"][Y])
        new = merge(mean, {"params": params})  # what is not trained stays
        return {**server, **add(new, {"buffers": change["buffers"]})}

    return Algorithm(
        name="fedlaw",
        weighting="samples",
        parts={"params": Part("rows")},
        round=run,
        calls=(fit,),
    )


def weight_fit(num_clients: int) -> ServerCall:
    """A call that learns x and y.

    It reads `models`, each leaf [K, ...], of the clients `clients` [K], and x [num_clients].
    """

    def server_state(weights: Tree) -> Tree:  # with one model: engines try their steps in it
        models = tree_map(lambda leaf: leaf[None], weights["params"])
        x = torch.zeros(num_clients, dtype=float_type(models))
        sent = {"models": models, "x": x, "clients": torch.tensor([0])}
        return {**model_weights(weights), **sent}

    def start(broadcast: Tree, client: Tree) -> Tree:
        x = broadcast["x"]
        params = {**broadcast["params"], X: x, Y: torch.zeros_like(x[0])}
        return {"params": params, "buffers": broadcast["buffers"]}

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        x = params[X][ctx.server["clients"]]
        return task({**params, **mixture(ctx.server["models"], x, params[Y])}, batch)

    adam = partial(torch.optim.Adam, betas=(0.5, 0.999))
    return ServerCall(
        name="fedlaw's weights",
        weighting="uniform",
        server_state=server_state,
        broadcast=lambda server: server,
        start=start,
        stages=(LocalStage(trains=(X, Y), optimizer=adam),),
        loss=loss,
    )


def mixture(models: Tree, x: Tensor, y: Tensor) -> Tree:
    """exp(y) times the mean of models with the weights softmax(x), leaf by leaf."""
    weights = y.exp() * x.softmax(0)
    return {name: torch.tensordot(weights.to(w), w, 1) for name, w in models.items()}
