"""Measures that several algorithms need. All of them read the fact `examples`."""

from torch import Tensor

from flfast.algorithms.contract import Batch, Context, Measure, Task
from flfast.algorithms.kit.gradient import gradient
from flfast.state.tree import Tree, tree_map


def _losses(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tree:
    return {"sum": task(weights, batch) * len(batch.targets)}


def _gradients(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tree:
    own = {name: weights[name].clone().requires_grad_() for name in ctx.server["params"]}
    point = {**weights, **own}
    _, grads = gradient(task, point, batch, trained=point)
    return tree_map(lambda grad: grad * len(batch.targets), grads)


LOSS = Measure("loss", _losses)
"""F_k(w), the loss over the client's training examples; see `mean_loss`."""

GRADIENT = Measure("gradient", _gradients)
"""grad F_k(w), of the parameters in the broadcast; see `mean_gradient`."""


def mean_loss(ctx: Context) -> Tensor:
    """F_k(w) [], float64, as `LOSS` found it."""
    total: Tensor = ctx.measured[LOSS.name]["sum"]
    return total / ctx.facts["examples"]


def mean_gradient(ctx: Context) -> Tree:
    """Grad F_k(w) by parameter, as `GRADIENT` found it, in the parameters' data types."""
    sums, like = ctx.measured[GRADIENT.name], ctx.start["params"]
    return {name: (sums[name] / ctx.facts["examples"]).to(like[name].dtype) for name in sums}
