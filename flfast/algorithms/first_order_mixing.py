"""Mixes a client's model with those of others, by what each of them would gain the client.

The client's state holds `before`, the weights that its last local training began from, and `own`,
those at its end. The download holds the others' `models`, each leaf [M, ...].
"""

import torch
from torch import Tensor

from flfast.algorithms.client import Context, Measure, Task
from flfast.algorithms.several_models import one_of
from flfast.datamodules.batches import Batch
from flfast.state.near_ties import nearest_whole
from flfast.state.tree import Tree, leaves, merge, part_of, tree_map
from flfast.state.weights import by_name


def _losses(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tree:
    models = ctx.server["models"]
    num = len(next(leaves(models)))
    points = [ctx.client["before"], {"params": {}, "buffers": {}}]
    points += [one_of(models, j) for j in range(num)]
    means = [task({**weights, **by_name(point)}, batch) for point in points]
    return {"sums": torch.stack(means) * len(batch.targets)}


MIXING = Measure("mixing", _losses)
"""Loss sums [2 + M] of `before`, `own` and the others' models. It reads the fact `examples`."""


def gains(ctx: Context) -> Tensor:
    """How much the loss falls from `before` per distance, towards `own` and the others [1 + M]."""
    before, *others = ctx.measured[MIXING.name]["sums"] / ctx.facts["examples"]
    moves = [leaf.flatten(1).double() for leaf in leaves(_moves(ctx)["params"])]
    far = torch.cat(moves, dim=1).norm(dim=1)
    return torch.where(far == 0, 0.0, (before - torch.stack(others)) / far)


def begin_mixed(weights: Tree, ctx: Context) -> Tree:
    """`mixed`, as the beginning of a stage.

    In a trial, the fused engine adds rounding errors to the weights; these stay.
    """
    return tree_map(lambda w, own, new: (w - own) + new, weights, ctx.start, mixed(ctx))


def mixed(ctx: Context) -> Tree:
    """`before`, moved towards the models that gain something, in proportion to their gains.

    Leaves that the others' models lack are those of `own`.
    """
    found = gains(ctx).clamp(min=0)
    shares = found / found.sum() if found.sum() > 0 else found

    def mix(before: Tensor, moves: Tensor) -> Tensor:
        move = torch.tensordot(shares, moves.double(), dims=1)
        if not before.is_floating_point():
            move = nearest_whole(move)
        return (before + move).to(before.dtype)

    moves = _moves(ctx)
    return merge(ctx.start, tree_map(mix, part_of(ctx.client["before"], moves), moves))


def _moves(ctx: Context) -> Tree:
    """From `before` to `own` and the others' models, each leaf [1 + M, ...]."""
    models = ctx.server["models"]
    return tree_map(
        lambda others, own, before: torch.cat([own[None], others]) - before,
        models,
        part_of(ctx.client["own"], models),
        part_of(ctx.client["before"], models),
    )


def middle(broadcast: Tree) -> Tree:
    """The mean of the others' models, which a client that learns nothing is close to."""
    return {"params": tree_map(lambda leaf: leaf.mean(0), broadcast["models"]["params"])}
