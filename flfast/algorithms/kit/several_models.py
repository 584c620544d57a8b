"""K models as one tree: each leaf [K, ...] holds that leaf of all models."""

import torch
from torch import Tensor

from flfast.algorithms.contract import Batch, Context, Measure, Task
from flfast.state.near_ties import first_lowest, nearest_whole
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, leaves, merge, part_of, tree_map
from flfast.state.weights import by_name, model_weights


def several(weights: Tree, num: int, *, spread: float, seed: int) -> Tree:
    """K initial models; the first one has the given weights.

    The others move towards the same values in another order within each tensor. Values that an
    initialiser draws independently have the same distribution in any order, and constants stay.

    K is `num`, and `spread` is the share of the way, in [0, 1].
    """
    rngs = [torch_generator(seed, "initial models", number) for number in range(1, num)]

    def models(leaf: Tensor) -> Tensor:
        orders = [torch.randperm(leaf.numel(), generator=rng) for rng in rngs]
        moves = [leaf.flatten()[order].view_as(leaf) - leaf for order in orders]
        return torch.stack([leaf, *((leaf + spread * move).to(leaf.dtype) for move in moves)])

    return tree_map(models, model_weights(weights))


def only_models(models: Tree) -> Tree:
    """A server state or broadcast of K models, which holds no single complete one."""
    return {"params": {}, "buffers": {}, "models": models}


def with_one(broadcast: Tree, place: int | Tensor) -> Tree:
    """One of the broadcast's models, and the leaves that a wrapper added to the broadcast."""
    return merge(model_weights(broadcast), one_of(broadcast["models"], place))


def exchanged(weights: Tree, models: Tree, place: int | Tensor) -> Tree:
    """The weights with model `place` instead of model 0.

    In a trial, the fused engine adds rounding errors to the weights; these stay.
    """
    old, new = one_of(models, 0), one_of(models, place)
    return merge(weights, tree_map(lambda w, a, b: (w - a) + b, part_of(weights, old), old, new))


def one_of(models: Tree, place: int | Tensor) -> Tree:
    """The model at a place in [0, K)."""
    return tree_map(lambda leaf: leaf[place], models)


def change_of_one(new: Tree, old: Tree, chosen: Tensor) -> Tree:
    """`new - old` in the place of one model, zeros in the others; leaves [K, ...] of floats.

    The place is `chosen`, one-hot [K].
    """

    def placed(new: Tensor, old: Tensor) -> Tensor:
        change = new - old
        change = change.to(torch.promote_types(change.dtype, torch.float32))  # of counts, too
        return torch.tensordot(chosen.to(change), change, dims=0)

    return tree_map(placed, new, old)


def changed(models: Tree, change: Tree) -> Tree:
    """`models + change`, where the change may have other parts; counts are rounded."""

    def add(leaf: Tensor, change: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            change = nearest_whole(change).to(leaf.dtype)
        return leaf + change

    return tree_map(add, models, model_weights(change))


def _loss_sums(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tree:
    """Sums [K] of the losses of all models of the broadcast."""
    models = ctx.server["models"]
    num = len(next(leaves(models)))
    means = [task({**weights, **by_name(one_of(models, j))}, batch) for j in range(num)]
    return {"sums": torch.stack(means) * len(batch.targets)}


LOSSES = Measure("losses", _loss_sums)
"""The losses of all models of the broadcast over a client's training examples."""


def lowest(ctx: Context) -> Tensor:
    """The place of the first model that had the lowest of `LOSSES`, but for rounding."""
    return first_lowest(ctx.measured["losses"]["sums"])
