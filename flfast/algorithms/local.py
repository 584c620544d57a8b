"""Local training without federation: every client keeps its own model, nothing is sent.

It is the baseline that personalised algorithms have to beat.
"""

from flfast.algorithms.contract import Algorithm
from flfast.algorithms.kit.keep_local import keep_local
from flfast.state.tree import Tree


def local(*, initial: Tree) -> Algorithm:
    """Clients that train their own models from common initial weights."""
    return keep_local(Algorithm(name="local"), initial)
