"""Objectives by their gradient: for algorithms whose local step is not the gradient of a loss."""

from typing import cast

import torch
from torch import Tensor

from flfast.algorithms.algorithm import Task
from flfast.datamodules.batches import Batch
from flfast.state.tree import Tree


def surrogate(value: Tensor, params: Tree, grads: Tree) -> Tensor:
    """An objective of a given value and a given gradient.

    >>> w = torch.ones(2, requires_grad=True)
    >>> loss = surrogate(torch.tensor(5.0), {"w": w}, {"w": torch.tensor([2.0, 3.0])})
    >>> loss.item(), *torch.autograd.grad(loss, w)
    (5.0, tensor([2., 3.]))

    Args:
        value: [].
        params: what it is to be differentiated in.
        grads: the gradient, by name; parameters without one get none.
    """
    terms = [(grad.detach() * (params[n] - params[n].detach())).sum() for n, grad in grads.items()]
    return value.detach() + cast(Tensor, sum(terms))


def gradient(task: Task, params: Tree, batch: Batch, *, of: Tree) -> tuple[Tensor, Tree]:
    """Mean task loss [] at some parameters, and its gradient there as constants.

    Args:
        task: the model's.
        params: where.
        batch: of any size.
        of: parameters of local training; those that it trains are differentiated in.
    """
    point = {name: p.detach().requires_grad_(of[name].requires_grad) for name, p in params.items()}
    wanted = [name for name, p in point.items() if p.requires_grad]
    with torch.enable_grad():
        value = task(point, batch)
        grads = torch.autograd.grad(value, [point[n] for n in wanted], allow_unused=True)
    pairs = zip(wanted, grads, strict=True)
    return value.detach(), {name: grad for name, grad in pairs if grad is not None}
