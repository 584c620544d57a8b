"""Mime: MimeLite whose local steps also correct the drift of clients, as SVRG does.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh: Breaking the Centralized Barrier for
Cross-Device Federated Learning. NeurIPS 2021, Algorithm 1. https://arxiv.org/abs/2008.03606

    c = mean_k grad F_k(x[t])
    y := y - lr * ((1 - beta) * (g_k(y) - g_k(x[t]) + c) + beta * m[t]),   from y = x[t]
    x[t+1] = mean_k y_k
    m[t+1] = (1 - beta) * c + beta * m[t]

Both g_k are of the same batch. A round calls the cohort twice: for c, then for training.
"""

from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Round, Task, Weighting
from flfast.algorithms.kit.gradient import gradient
from flfast.algorithms.kit.measures import GRADIENT, mean_gradient
from flfast.state.options import BelowOne
from flfast.state.tree import Tree, add, move, zeros


def mime(*, beta: BelowOne, weighting: Weighting) -> Algorithm:
    """MimeLite with variance-reduced gradients."""
    full_gradient = Algorithm(
        name="mime's full gradient",
        weighting=weighting,
        facts=("examples",),
        stages=(GRADIENT,),
        finish=lambda done, ctx: ({"gradient": mean_gradient(ctx)}, ctx.client),
    )

    def reduced(task: Task, params: Tree, batch: Batch, ctx: Context) -> tuple[Tensor, Tree]:
        c, m = ctx.server["gradient"], ctx.server["momentum"]
        value, here = gradient(task, params, batch, trained=params)
        # Parameters that stay on the client (`bn=local`) are not corrected.
        _, there = gradient(task, {**params, **ctx.server["params"]}, batch, trained=params)
        shared = [name for name in here if name in c]
        steps = {n: (1 - beta) * (here[n] - there[n] + c[n]) + beta * m[n] for n in shared}
        return value, {**here, **steps}

    def run(server: Tree, rnd: Round) -> Tree:
        found = rnd.call(server, full_gradient).mean["gradient"]
        server = {**server, "gradient": {**server["gradient"], **found}}
        uploads = rnd.call(server)
        momentum = move(server["gradient"], server["momentum"], beta)
        return {**add(server, uploads.mean), "momentum": momentum}

    def server_state(weights: Tree) -> Tree:
        nothing = zeros(weights["params"])
        return {**weights, "momentum": nothing, "gradient": nothing}

    return Algorithm(
        name="mime",
        weighting=weighting,
        server_state=server_state,
        broadcast=lambda server: server,
        gradient=reduced,
        round=run,
        calls=(full_gradient,),
    )
