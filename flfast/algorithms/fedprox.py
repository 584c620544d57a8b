"""FedProx: a proximal term keeps local training near the server's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks.
MLSys 2020, equation 2. https://arxiv.org/abs/1812.06127

    h_k(w; w[t]) = F_k(w) + mu / 2 * |w - w[t]|^2

The paper samples clients by size and weighs them equally. Here cohorts are sampled uniformly; then
`samples`, as in the authors' code, gives every example the same weight.
"""

from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, squared_norm, sub


def fedprox(*, mu: NonNegative, weighting: Weighting) -> Algorithm:
    """FedAvg with a proximal local objective; mu = 0 is FedAvg."""

    def proximal(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        distance = squared_norm(sub(params, ctx.start["params"]))
        return task(params, batch) + mu / 2 * distance

    return Algorithm(name="fedprox", weighting=weighting, loss=proximal)
