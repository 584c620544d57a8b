"""Wrappers that carry the state of local optimizers over to the next round, for any algorithm.

`keep`: every client continues with its own state. `average`: the server averages and broadcasts
the states of shared parameters, such as momentum (Yu, Jin, Yang: On the Linear Speedup Analysis of
Communication Efficient Momentum SGD for Distributed Non-Convex Optimization. ICML 2019, Algorithm
1). `reset`, the default, needs no wrapper.
"""

from dataclasses import replace

from flfast.algorithms.contract import Algorithm, Context, Finished, Part, Uploads
from flfast.algorithms.kit.wrapping import inner_context, viewed
from flfast.state.tree import Tree, add, merge


def keep_optimizer(algorithm: Algorithm) -> Algorithm:
    """Make the state of the local optimizer part of the client state."""
    inner = viewed(
        algorithm,
        {"download": lambda sent, client: (sent, client["inner"]), "context": inner_context},
    )

    def client_state(broadcast: Tree) -> Tree:
        return {"inner": algorithm.client_state(broadcast), "optimizer": {}}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, state = inner.finish(done, ctx)
        return upload, {"inner": state, "optimizer": done.optimizer}

    return replace(
        inner,
        client_state=client_state,
        kit=inner.kit._replace(optimizer=lambda broadcast, client: client["optimizer"]),
        finish=finish,
    )


def average_optimizer(algorithm: Algorithm) -> Algorithm:
    """Upload, average and broadcast the states of the local optimizers.

    States of parameters that are not broadcast stay on the client, like the parameters. If the
    algorithm is stateless, they start fresh every round. Scalars of a state, such as Adam's
    `step`, are uploaded as counts.
    """
    keeping = keep_optimizer(algorithm) if algorithm.stateful else algorithm

    def optimizer(broadcast: Tree, client: Tree) -> Tree:
        return {**broadcast["optimizer"], **client.get("optimizer", {})}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        shared = {n: state for n, state in done.optimizer.items() if n in ctx.server["params"]}
        kept = {n: state for n, state in done.optimizer.items() if n not in shared}
        upload, client = keeping.finish(done._replace(optimizer=kept), ctx)
        learned, counted = _split_counts(shared, done.weights["params"])
        learned = {
            n: _minus(state, ctx.server["optimizer"].get(n, {})) for n, state in learned.items()
        }
        return {**upload, "optimizer": learned, "optimizer_counts": counted}, client

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        mean = dict(uploads.mean)
        optimizer = add(server["optimizer"], mean.pop("optimizer"))
        optimizer = merge(optimizer, mean.pop("optimizer_counts"))
        stepped = algorithm.server_step(server, uploads._replace(mean=mean))
        return {**stepped, "optimizer": optimizer}

    return replace(
        keeping,
        server_state=lambda weights: {**algorithm.server_state(weights), "optimizer": {}},
        broadcast=lambda server: {**algorithm.broadcast(server), "optimizer": server["optimizer"]},
        kit=keeping.kit._replace(optimizer=optimizer),
        finish=finish,
        parts={**algorithm.parts, "optimizer_counts": Part(learned=False)},
        server_step=server_step,
    )


def _minus(state: Tree, known: Tree) -> Tree:
    """The change of a parameter's state, from zero where the server knows none."""
    return {key: leaf - known[key] if key in known else leaf for key, leaf in state.items()}


def _split_counts(optimizer: Tree, params: Tree) -> tuple[Tree, Tree]:
    """(learned, counted) leaves. Scalars are counts, unless their parameter is a scalar itself."""
    learned, counted = Tree(), Tree()
    for name, state in optimizer.items():
        learned[name], counted[name] = Tree(), Tree()
        for key, leaf in state.items():
            is_count = not leaf.ndim and params[name].ndim
            (counted if is_count else learned)[name][key] = leaf
    return learned, counted
