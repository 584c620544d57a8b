"""MimeLite: local steps with the server's momentum, which is computed from full gradients.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh: Breaking the Centralized Barrier for
Cross-Device Federated Learning. NeurIPS 2021, Algorithm 1. https://arxiv.org/abs/2008.03606

    y := y - lr * ((1 - beta) * g_k(y) + beta * m[t]),   from y = x[t]
    x[t+1] = mean_k y_k
    m[t+1] = (1 - beta) * mean_k grad F_k(x[t]) + beta * m[t]

The momentum stays fixed during local training. grad F_k is over all examples of the client, in
evaluation mode. `mime` also corrects the drift of clients.
"""

from flfast.algorithms.contract import Algorithm, Context, Finished, LocalStage, Uploads, Weighting
from flfast.algorithms.kit.measures import GRADIENT, mean_gradient
from flfast.state.options import BelowOne
from flfast.state.tree import Tree, add, move, zeros


def mimelite(*, beta: BelowOne, weighting: Weighting) -> Algorithm:
    """FedAvg with the server's momentum in every local step; beta = 0 is FedAvg."""

    def correct(grads: Tree, params: Tree, ctx: Context) -> Tree:
        momentum = ctx.server["momentum"]
        return {n: (1 - beta) * grads[n] + beta * momentum[n] for n in grads if n in momentum}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return {**ctx.change(done.weights), "gradient": mean_gradient(ctx)}, ctx.client

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean = dict(uploads.mean)
        momentum = server["momentum"]
        momentum = {**momentum, **move(mean.pop("gradient"), momentum, beta)}
        return {**add(server, mean), "momentum": momentum}

    return Algorithm(
        name="mimelite",
        weighting=weighting,
        server_state=lambda weights: {**weights, "momentum": zeros(weights["params"])},
        broadcast=lambda server: server,
        facts=("examples",),
        stages=(GRADIENT, LocalStage()),
        correct=correct,
        finish=finish,
        server_step=server_step,
    )
