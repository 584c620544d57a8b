"""The ascent step of sharpness-aware minimisation, and the gradient after it."""

import torch
from torch import Tensor

from flfast.algorithms.contract import Batch, Context, Gradient, Task
from flfast.algorithms.kit.gradient import gradient
from flfast.state.tree import Tree

EPS = 1e-16
"""Added to norms, as in the code of FedSAM's authors: gradients may be zero."""


@torch.no_grad()
def ascent(grads: Tree, *, rho: float, scales: Tree) -> Tree:
    """`rho * T^2 g / |T g|` with gradients g, by name.

    `scales` is the diagonal of T by name; 1 where it is missing.

    >>> ascent({"w": torch.tensor([3.0, 4.0])}, rho=1.0, scales={})
    {'w': tensor([0.6000, 0.8000])}
    """
    scaled = {n: scales[n] * g if n in scales else g for n, g in grads.items()}
    norms = [torch.linalg.vector_norm(g) for g in scaled.values()]
    norm = torch.linalg.vector_norm(torch.stack(norms)) + EPS
    factor = rho / norm.clamp(min=torch.finfo(norm.dtype).tiny)  # float16 has no EPS
    return {n: factor * (scales[n] * g if n in scales else g) for n, g in scaled.items()}


def moved(params: Tree, steps: Tree) -> Tree:
    """`params + steps`; parameters without a step stay."""
    return {n: p + steps[n] if n in steps else p for n, p in params.items()}


@torch.no_grad()
def ascended(params: Tree, grads: Tree, *, rho: float, scales: Tree) -> Tree:
    """`params` after the step of `ascent`; parameters without a gradient stay."""
    return moved(params, ascent(grads, rho=rho, scales=scales))


def uphill_gradient(rho: float, *, eta: float | None = None) -> Gradient:
    """An algorithm's `gradient`: that after `ascent` along g at w. The loss is at w.

    Args:
        rho: length of the step for T = 1.
        eta: T = |w| + eta, element by element; None is T = 1.
    """

    def uphill(task: Task, params: Tree, batch: Batch, ctx: Context) -> tuple[Tensor, Tree]:
        value, grads = gradient(task, params, batch, trained=params)
        scales = {} if eta is None else {n: params[n].detach().abs() + eta for n in grads}
        point = ascended(params, grads, rho=rho, scales=scales)
        return value, gradient(task, point, batch, trained=params)[1]

    return uphill
