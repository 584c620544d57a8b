"""Means over a client's training examples of each class, such as of features (prototypes)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Batch, Context, Finished, Measure, Part, Task
from flfast.state.tree import Tree

Outputs = Callable[[Task, Tree, Batch], Tensor]
Finish = Callable[[Finished, Context], tuple[Tree, Tree]]
NAME = "classes"
MEANS = {"means": Part("rows", stale="refuse"), "classes": Part("rows", learned=False)}
"""Parts of an upload of class means [K, C, D], and whether a client has the class [K, C]."""


def class_sums(num_classes: int, outputs: Outputs) -> Measure:
    """The measure for `class_means`.

    Args:
        num_classes: C.
        outputs: (task, weights by name, batch) -> what to add up by class [B, D].
    """

    def sums(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tree:
        values = outputs(task, weights, batch)
        classes = F.one_hot(batch.targets, num_classes).to(values.dtype)
        return {"sums": classes.T @ values, "counts": classes.sum(0)}

    return Measure(NAME, sums)


def summed(ctx: Context) -> tuple[Tensor, Tensor]:
    """Sums [C, D] and numbers of examples [C], as `class_sums` found them, float64."""
    return ctx.measured[NAME]["sums"], ctx.measured[NAME]["counts"]


def means_alone(dtype: torch.dtype) -> Finish:
    """An algorithm's `finish` that uploads `class_means`, by `MEANS`, and keeps the model."""

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        means, present = class_means(ctx, dtype)
        return {"params": {}, "buffers": {}, "means": means, "classes": present}, ctx.client

    return finish


def class_means(ctx: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Means [C, D], zero for classes without examples, and whether a class has any [C].

    `ctx` is the context after the measure `class_sums`, and `dtype` the data type of both results.
    """
    sums, counts = summed(ctx)
    means = sums / counts.clamp(min=1).unsqueeze(1)
    return means.to(dtype), (counts > 0).to(dtype)
