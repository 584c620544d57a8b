"""What becomes of a local optimizer's state between rounds: wrappers that any algorithm can wear.

`reset` needs none. `keep`: every client continues with its own state. `average`: states of shared
parameters are averaged as those are, and every client starts from the mean (momentum that is
federated, as in Yu, Jin, Yang: On the Linear Speedup Analysis of Communication Efficient Momentum
SGD for Distributed Non-Convex Optimization. ICML 2019, Algorithm 1).
"""

from dataclasses import replace
from typing import Literal

from flfast.algorithms.algorithm import (
    Algorithm,
    Context,
    Finished,
    Uploads,
    inner_context,
    inner_functions,
)
from flfast.state.tree import Tree, merge
from flfast.state.vector import COUNTS

LocalOptimizerState = Literal["reset", "keep", "average"]


def keep_optimizer(algorithm: Algorithm) -> Algorithm:
    """The algorithm with local optimizer states kept by their clients."""

    def client_state(broadcast: Tree) -> Tree:
        return {"inner": algorithm.client_state(broadcast), "optimizer": {}}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, inner = algorithm.finish(done, inner_context(ctx))
        return upload, {"inner": inner, "optimizer": done.optimizer}

    personal = algorithm.personal
    return replace(
        algorithm,
        **inner_functions(algorithm),
        client_state=client_state,
        start=lambda broadcast, client: algorithm.start(broadcast, client["inner"]),
        optimizer=lambda broadcast, client: client["optimizer"],
        finish=finish,
        personal=personal and (lambda broadcast, client: personal(broadcast, client["inner"])),
    )


def average_optimizer(algorithm: Algorithm) -> Algorithm:
    """The algorithm with local optimizer states averaged, broadcast and uploaded.

    Those of parameters that are not broadcast stay with their clients, as the parameters do; an
    algorithm whose clients keep nothing starts them afresh. Numbers that a state has beside its
    tensors, such as Adam's `step`, are counts.
    """
    keeping = keep_optimizer(algorithm) if algorithm.stateful else algorithm

    def optimizer(broadcast: Tree, client: Tree) -> Tree:
        return {**broadcast["optimizer"], **client.get("optimizer", {})}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        shared = {n: own for n, own in done.optimizer.items() if n in ctx.server["params"]}
        own = {n: state for n, state in done.optimizer.items() if n not in shared}
        upload, client = keeping.finish(done._replace(optimizer=own), ctx)
        learned, counted = _separated(shared, done.weights["params"])
        counts = {**upload.get(COUNTS, {}), "optimizer": counted}
        return {**upload, "optimizer": learned, COUNTS: counts}, client

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean = dict(uploads.mean)
        counts = dict(mean.pop(COUNTS))
        optimizer = merge(mean.pop("optimizer"), counts.pop("optimizer"))
        inner = {**mean, COUNTS: counts} if counts else mean
        stepped = algorithm.server_step(server, uploads._replace(mean=inner))
        return {**stepped, "optimizer": optimizer}

    return replace(
        keeping,
        server_state=lambda weights: {**algorithm.server_state(weights), "optimizer": {}},
        broadcast=lambda server: {**algorithm.broadcast(server), "optimizer": server["optimizer"]},
        origin=lambda server: {**algorithm.origin(server), "optimizer": server["optimizer"]},
        optimizer=optimizer,
        finish=finish,
        server_step=server_step,
    )


def _separated(optimizer: Tree, params: Tree) -> tuple[Tree, Tree]:
    """A local optimizer's state, learned and counted: numbers of a parameter with dimensions."""
    learned, counted = Tree(), Tree()
    for name, state in optimizer.items():
        learned[name], counted[name] = Tree(), Tree()
        for key, leaf in state.items():
            is_count = not leaf.ndim and params[name].ndim
            (counted if is_count else learned)[name][key] = leaf
    return learned, counted
