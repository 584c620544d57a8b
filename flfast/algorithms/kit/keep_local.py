"""A wrapper that keeps part of the model on the client, for any algorithm.

With the BatchNorm layers it is FedBN (Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated
Learning on Non-IID Features via Local Batch Normalization. ICLR 2021, Algorithm 1).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from flfast.algorithms.contract.algorithm import Algorithm, Round
from flfast.algorithms.contract.client import Context, Finished
from flfast.algorithms.contract.uploads import Uploads
from flfast.algorithms.kit.wrapping import check_one_call, inner
from flfast.state.tree import Tree, merge, part_of, without
from flfast.state.weights import model_weights


def keep_local(algorithm: Algorithm, initial: Tree) -> Algorithm:
    """Keep some parameters and buffers on the client: they are neither broadcast nor uploaded.

    The server's model has their initial values, and so has a client before its first round. It is
    not complete, and therefore neither evaluated nor saved as a model.

    Args:
        algorithm: federates the rest.
        initial: leaves to keep, with initial values, `{"params": ..., "buffers": ...}`.

    Raises:
        ValueError: if a round has several calls, and the algorithm has states of clients. Or if
            the server trains, which it can do with a whole model only.
    """
    if algorithm.server_calls:
        raise ValueError(
            f"a part of the model on the clients (bn=local) with algorithm={algorithm.name}, "
            f"which trains the whole model on the server; use bn=aggregate, or another algorithm"
        )
    check_one_call(algorithm, "a part of the model on the clients", unless=not algorithm.stateful)
    wrapped = inner(algorithm)

    def server_state(weights: Tree) -> Tree:
        return merge(weights, algorithm.server_state(without(weights, initial)))

    def client_state(broadcast: Tree) -> Tree:
        return {"inner": algorithm.client_state(merge(broadcast, initial)), "own": initial}

    def start(broadcast: Tree, client: Tree) -> Tree:
        return algorithm.start(merge(broadcast, client["own"]), client["inner"])

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, state = wrapped.finish(done, ctx)
        return without(upload, initial), {"inner": state, "own": part_of(done.weights, initial)}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        return merge(server, algorithm.server_step(without(server, initial), uploads))

    def personal(broadcast: Tree, client: Tree) -> Tree:
        complete = merge(broadcast, client["own"])
        return (algorithm.personal or _model)(complete, client["inner"])

    below = partial(_below, initial)
    return replace(
        wrapped,
        evaluate_server=False,
        server_state=server_state,
        client_state=client_state,
        broadcast=lambda server: without(algorithm.broadcast(server), initial),
        send=algorithm.send and below(algorithm.send),
        record=algorithm.record and below(algorithm.record),
        first_record=below(algorithm.first_record),
        start=start,
        finish=finish,
        server_step=server_step,
        round=algorithm.round and partial(_round, algorithm.round, initial),
        calls=tuple(keep_local(call, initial) for call in algorithm.calls),
        personal=personal,
    )


def _round(run: Callable[[Tree, Round], Tree], initial: Tree, server: Tree, rnd: Round) -> Tree:
    return merge(server, run(without(server, initial), rnd))


def _below(initial: Tree, of_server: Callable[..., Tree]) -> Callable[..., Tree]:
    """A function of a server state that lacks what clients keep, and so does its result."""
    return lambda server, *args: without(of_server(without(server, initial), *args), initial)


def _model(broadcast: Tree, client: Tree) -> Tree:
    return model_weights(broadcast)
