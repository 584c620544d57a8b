"""Keeping some of the model on the client: a wrapper that any algorithm can wear.

With the names of the BatchNorm layers it is FedBN (Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated
Learning on Non-IID Features via Local Batch Normalization. ICLR 2021, Algorithm 1).
"""

from dataclasses import replace

from flfast.algorithms.algorithm import (
    Algorithm,
    Context,
    Finished,
    Uploads,
    inner_context,
    inner_functions,
)
from flfast.state.tree import Tree, merge, part_of

_KINDS = ("params", "buffers")


def keep_local(algorithm: Algorithm, initial: Tree) -> Algorithm:
    """The algorithm with some parameters and buffers never leaving the client.

    They are neither broadcast nor uploaded; a client that never trained is evaluated with the
    initial ones, and so is the server's model.

    Args:
        algorithm: trains the rest; must upload weights.
        initial: the leaves to keep with their initial values, `{"params": ..., "buffers": ...}`.
    """

    def server_state(weights: Tree) -> Tree:
        return merge(weights, algorithm.server_state(_without(weights, initial)))

    def client_state(broadcast: Tree) -> Tree:
        return {"inner": algorithm.client_state(merge(broadcast, initial)), "own": initial}

    def broadcast(server: Tree) -> Tree:
        return _without(algorithm.broadcast(server), initial)

    def start(broadcast: Tree, client: Tree) -> Tree:
        return algorithm.start(merge(broadcast, client["own"]), client["inner"])

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, inner = algorithm.finish(done, inner_context(ctx))
        return _without(upload, initial), {"inner": inner, "own": part_of(done.weights, initial)}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        return merge(server, algorithm.server_step(_without(server, initial), uploads))

    def personal(broadcast: Tree, client: Tree) -> Tree:
        whole = merge(broadcast, client["own"])
        return (algorithm.personal or _model)(whole, client["inner"])

    return replace(
        algorithm,
        **inner_functions(algorithm),
        server_state=server_state,
        client_state=client_state,
        broadcast=broadcast,
        start=start,
        finish=finish,
        server_step=server_step,
        personal=personal,
    )


def _model(broadcast: Tree, client: Tree) -> Tree:
    return {kind: broadcast[kind] for kind in _KINDS}


def _without(tree: Tree, names: Tree) -> Tree:
    kept = {
        kind: {name: leaf for name, leaf in tree[kind].items() if name not in names[kind]}
        for kind in _KINDS
        if kind in tree
    }
    return {**tree, **kept}
