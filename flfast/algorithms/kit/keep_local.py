"""A wrapper that keeps part of the model on the client, for any algorithm.

With the BatchNorm layers of FedAvg it is FedBN; `fedbn` has paper and equation.
"""

from dataclasses import replace

from flfast.algorithms.contract import Algorithm, Context, Finished
from flfast.algorithms.kit.wrapping import inner_context, viewed
from flfast.state.tree import Tree, merge, part_of, without
from flfast.state.weights import model_weights


def keep_local(algorithm: Algorithm, initial: Tree) -> Algorithm:
    """Keep some parameters and buffers on the client: they are neither broadcast nor uploaded.

    The server's model has their initial values, and so has a client before its first round. It is
    not complete, and therefore neither evaluated nor saved as a model. `initial` are the leaves to
    keep, with initial values, `{"params": ..., "buffers": ...}`; the algorithm federates the rest.

    Raises:
        ValueError: if a round has several calls, and the algorithm has states of clients. Or if
            the server trains, which it can do with a whole model only. Or if clients have slices.
    """
    _check(algorithm)

    def shared(tree: Tree) -> Tree:
        return without(tree, initial)

    def download(broadcast: Tree, client: Tree) -> tuple[Tree, Tree]:
        return merge(broadcast, client["own"]), client["inner"]

    inner = viewed(
        replace(algorithm, personal=algorithm.personal or (lambda sent, _: model_weights(sent))),
        {"server": shared, "download": download, "context": inner_context},
        dict.fromkeys(("send", "record.rows", "record.initial"), shared),
    )
    run = inner.round

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, state = inner.finish(done, ctx)
        return shared(upload), {"inner": state, "own": part_of(done.weights, initial)}

    def client_state(broadcast: Tree) -> Tree:
        return {"inner": algorithm.client_state(merge(broadcast, initial)), "own": initial}

    return replace(
        inner,
        evaluate_server=False,
        server_state=lambda weights: merge(weights, algorithm.server_state(shared(weights))),
        client_state=client_state,
        # Of the whole model: an algorithm may broadcast a part that it names.
        broadcast=lambda server: shared(algorithm.broadcast(server)),
        finish=finish,
        server_step=lambda server, uploads: merge(server, inner.server_step(server, uploads)),
        round=run and (lambda server, rnd: merge(server, run(server, rnd))),
        calls=tuple(keep_local(call, initial) for call in algorithm.calls),
    )


def _check(algorithm: Algorithm) -> None:
    """Refuse an algorithm of which no part can stay on the client; see `keep_local`."""
    if algorithm.slices:
        raise ValueError(
            f"a part of the model on the clients (bn=local) with algorithm={algorithm.name}, "
            f"whose clients have slices of the model; allowed: bn=recalibrate, aggregate"
        )
    several = algorithm.round and algorithm.stateful
    if algorithm.server_calls or several:
        does = "calls clients several times" if several else "trains the whole model on the server"
        raise ValueError(
            f"a part of the model on the clients (bn=local) with algorithm={algorithm.name}, "
            f"which {does}; use bn=aggregate, or another algorithm"
        )
