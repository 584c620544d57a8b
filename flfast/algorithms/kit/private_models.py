"""Private models: every client trains its own, and uploads a copy that the server keeps."""

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.client import Context, Finished
from flfast.algorithms.contract.uploads import Part
from flfast.state.tree import Tree
from flfast.state.weights import model_weights


def private_models(name: str, initial: Tree) -> Algorithm:
    """Local training that the server watches: the records are the models uploaded last.

    Algorithms add what the server sends, and what clients make of it. The client state holds the
    model as `own`.

    Args:
        name: of the algorithm.
        initial: weights before round 1.
    """

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return done.weights, {"own": done.weights}

    return Algorithm(
        name=name,
        evaluate_server=False,
        server_state=lambda weights: {"params": {}, "buffers": {}},
        client_state=lambda broadcast: {"own": initial},
        record=lambda server, uploads: model_weights(uploads.rows),
        first_record=lambda server: initial,
        start=lambda broadcast, client: client["own"],
        finish=finish,
        parts={"params": Part("rows"), "buffers": Part("rows")},
        personal=lambda broadcast, client: client["own"],
    )
