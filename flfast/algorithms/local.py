"""Local training without federation: every client keeps its own model, nothing is averaged.

The floor of every comparison: what a client reaches alone.
"""

from flfast.algorithms.algorithm import Algorithm, Context, Finished
from flfast.state.tree import Tree


def local() -> Algorithm:
    """Clients that train their own models from common initial weights and upload nothing."""

    def first(broadcast: Tree) -> Tree:
        return {"params": broadcast["params"], "buffers": broadcast["buffers"]}

    def own(broadcast: Tree, client: Tree) -> Tree:
        return client

    def keep(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return {}, done.weights

    return Algorithm(
        name="local",
        client_state=first,
        start=own,
        finish=keep,
        server_step=lambda server, mean: server,
        personal=own,
    )
