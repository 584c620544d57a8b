"""Gradients at given parameters, for local steps that are not gradients of a loss."""

import torch
from torch import Tensor

from flfast.algorithms.contract import Batch, Task
from flfast.state.tree import Tree, dot


def gradient(task: Task, params: Tree, batch: Batch, *, trained: Tree) -> tuple[Tensor, Tree]:
    """Mean loss [] and its gradient at given parameters, both detached.

    `trained` are parameters of local training by the same names; the gradient is with respect to
    those that require one.
    """
    point, inputs = _point(params, trained)
    with torch.enable_grad():
        value = task(point, batch)
        grads = torch.autograd.grad(value, list(inputs.values()), allow_unused=True)
    return value.detach(), _by_name(inputs, grads)


def hessian_product(
    task: Task, params: Tree, batch: Batch, direction: Tree, *, trained: Tree
) -> Tree:
    """Product of the mean loss's Hessian with a direction, by a second backward pass; detached.

    The direction is by parameter name, such as a gradient, and `trained` is as in `gradient`.
    Operators of the model must have second derivatives.
    """
    point, inputs = _point(params, trained)
    with torch.enable_grad():
        found = torch.autograd.grad(
            task(point, batch), list(inputs.values()), create_graph=True, allow_unused=True
        )
        grads = {name: grad for name, grad in _by_name(inputs, found).items() if name in direction}
        products = torch.autograd.grad(
            dot(grads, direction), list(inputs.values()), allow_unused=True
        )
    return {name: product.detach() for name, product in _by_name(inputs, products).items()}


@torch.no_grad()
def shifted(params: Tree, direction: Tree, step: float | Tensor) -> Tree:
    """`params + step * direction`; parameters without a direction stay."""
    return {n: p + step * direction[n] if n in direction else p for n, p in params.items()}


def _point(params: Tree, trained: Tree) -> tuple[Tree, Tree]:
    """Detached parameters, and those of them that require a gradient."""
    point = {n: p.detach().requires_grad_(trained[n].requires_grad) for n, p in params.items()}
    return point, {name: p for name, p in point.items() if p.requires_grad}


def _by_name(inputs: Tree, gradients: tuple[Tensor | None, ...]) -> Tree:
    pairs = zip(inputs, gradients, strict=True)
    return {name: value for name, value in pairs if value is not None}
