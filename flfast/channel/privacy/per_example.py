"""Gradients of single examples, clipped and summed.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy.
CCS 2016, Algorithm 1. https://arxiv.org/abs/1607.00133
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from flfast.algorithms.contract import Task
from flfast.datamodules.batches import Batch
from flfast.state.tree import Tree


def clipped_sum(
    objective: Callable[[Tree, Batch], Tensor],
    task: Task,
    params: Tree,
    batch: Batch,
    *,
    clip_norm: float | None,
    micro_batch: int,
) -> tuple[Tensor, Tree, Tensor]:
    """Sum over examples of their gradients, each scaled down to a norm of at most `clip_norm`.

    Args:
        objective: (params, batch) -> the local objective; called with batches of one example.
        task: the model's. Its weights say which examples are padding; these count zero.
        params: by name; the gradient is with respect to those that require one.
        batch: B examples.
        clip_norm: bound of the gradient over all these parameters; None is no bound.
        micro_batch: most examples whose gradients are in memory at once.

    Returns:
        Mean loss [], sums by name, and the number of examples without padding [].
    """
    trained = {name: p.detach() for name, p in params.items() if p.requires_grad}
    rest = {name: p.detach() for name, p in params.items() if name not in trained}

    def of_one(trained: Tree, inputs: Tensor, targets: Tensor) -> Tensor:
        one = Batch(inputs.unsqueeze(0), targets.unsqueeze(0))
        return objective({**rest, **trained}, one)

    # Dropout masks differ between examples, as in a batch.
    of_each = vmap(grad_and_value(of_one), in_dims=(None, 0, 0), randomness="different")
    counted = _counted(task, batch)
    sums = {name: torch.zeros_like(p) for name, p in trained.items()}
    losses = []
    for start in range(0, len(batch.targets), micro_batch):
        part = slice(start, start + micro_batch)
        # vmap has rules for the operators of this attention only.
        with sdpa_kernel(SDPBackend.MATH):
            grads, values = of_each(trained, batch.inputs[part], batch.targets[part])
        factors = _factors(grads, clip_norm)
        factors = factors * counted[part].to(factors.dtype)
        for name, g in grads.items():
            sums[name] = sums[name] + torch.tensordot(factors.to(g.dtype), g, dims=1)
        losses.append(values.detach())
    return task.mean(torch.cat(losses)), sums, counted.sum()


def _counted(task: Task, batch: Batch) -> Tensor:
    """1 for each example and 0 for padding, [B], read from the weights of the task's mean."""
    zeros = torch.zeros(len(batch.targets), device=batch.targets.device)
    return (grad(task.mean)(zeros) > 0).to(zeros.dtype)


def _factors(grads: Tree, clip_norm: float | None) -> Tensor:
    """Factor of every example's gradient, [B]."""
    # A norm of 16-bit numbers would be too inexact for a bound.
    squares = torch.stack(
        [_at_least_float32(g).reshape(len(g), -1).square().sum(1) for g in grads.values()]
    )
    norms = squares.sum(0).sqrt()
    if clip_norm is None:
        return torch.ones_like(norms)
    return (clip_norm / norms).clamp(max=1.0)  # a gradient of zero has the factor 1


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
