"""The server step of FedAdagrad, FedYogi and FedAdam, which differ in `second_moment`.

The files of these algorithms have the paper and the equations.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Uploads, Weighting
from flfast.state.tree import Tree, add, move, tree_map, zeros

SecondMoment = Callable[[Tensor, Tensor], Tensor]
"""(v[t-1], Delta[t]^2) -> v[t]."""


def adaptive_server(
    name: str,
    second_moment: SecondMoment,
    *,
    server_lr: float,
    beta1: float,
    tau: float,
    weighting: Weighting,
) -> Algorithm:
    """FedAvg with an adaptive server step; both moments are part of the server state.

    torch's optimizers differ: they correct a bias, and their v starts at 0 instead of tau^2.
    """

    def server_state(weights: Tree) -> Tree:
        params = weights["params"]
        v = tree_map(lambda p: torch.full_like(p, tau**2), params)
        return {**weights, "moments": {"m": zeros(params), "v": v}}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        old, moments = server["params"], server["moments"]
        delta = uploads.mean["params"]
        m = move(moments["m"], delta, 1 - beta1)
        v = tree_map(lambda v, d: second_moment(v, d.square()), moments["v"], delta)
        params = tree_map(lambda w, m, v: w + server_lr * m / (v.sqrt() + tau), old, m, v)
        return {**add(server, uploads.mean), "params": params, "moments": {"m": m, "v": v}}

    return Algorithm(
        name=name, weighting=weighting, server_state=server_state, server_step=server_step
    )
