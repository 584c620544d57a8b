"""A server that stops where its own step leaves the numbers."""

from dataclasses import replace

from torch import Tensor

from flfast.algorithms.algorithm import Algorithm, Uploads
from flfast.state.tree import Tree, tree_map


def finite(algorithm: Algorithm) -> Algorithm:
    """The algorithm, whose server step refuses weights with NaN or infinity.

    Uploads are finite, the others are left out; a server step can still overflow.
    """

    def step(server: Tree, uploads: Uploads) -> Tree:
        new = algorithm.server_step(server, uploads)
        tree_map(_check, new["params"])
        return new

    return replace(algorithm, server_step=step)


def _check(weights: Tensor) -> Tensor:
    if not weights.isfinite().all():
        raise FloatingPointError(
            "the server's step made NaN or infinity of finite uploads; make it smaller: "
            "algorithm.server_lr, algorithm.alpha or algorithm.tau, as the algorithm has them"
        )
    return weights
