"""Private models: every client trains its own, and uploads a copy that the server keeps."""

from collections.abc import Callable

import torch

from flfast.algorithms.contract import Algorithm, Context, Finished, Part, Record, Uploads
from flfast.state.tree import Tree, add, scaled
from flfast.state.weights import model_weights


def private_models(name: str, initial: Tree, *, known: Callable[[Tree], Tree]) -> Algorithm:
    """Local training that the server watches: the records are the models uploaded last.

    Algorithms add what the server sends, and what clients make of it. The client state holds the
    model as `own`. `known` makes of a download what a client's upload is a change of. Leaves that
    it lacks, such as buffers, are uploaded whole.
    """

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return add(done.weights, scaled(known(ctx.server), -1)), {"own": done.weights}

    def record(server: Tree, uploads: Uploads) -> Tree:
        return add(torch.vmap(known)(uploads.sent), model_weights(uploads.rows))

    return Algorithm(
        name=name,
        evaluate_server=False,
        server_state=lambda weights: {"params": {}, "buffers": {}},
        client_state=lambda broadcast: {"own": initial},
        record=Record(record, initial=lambda server: initial),
        start=lambda broadcast, client: client["own"],
        finish=finish,
        parts={"params": Part("rows"), "buffers": Part("rows")},
        personal=lambda broadcast, client: client["own"],
    )
