"""Mixes each of K models with one of the others."""

from typing import Literal

import torch
from torch import Tensor

from flfast.state.near_ties import first_lowest, nearest_whole
from flfast.state.tree import Tree, leaves, tree_map

Selection = Literal["in_order", "highest", "lowest"]

SAME = 1e-12
"""One minus the cosine of models that are equal but for rounding of float32, or less."""


def cross_aggregated(models: Tree, alpha: float, selection: Selection, num_rounds: int) -> Tree:
    """`alpha * model + (1 - alpha) * other` for each model; counts are rounded.

    Args:
        models: each leaf [K, ...].
        alpha: share of the model itself.
        selection: of the other model, see `collaborators`.
        num_rounds: before this one.
    """
    others = collaborators(models, selection, num_rounds)

    def mix(leaf: Tensor) -> Tensor:
        mixed = alpha * leaf.double() + (1 - alpha) * leaf[others].double()
        return (mixed if leaf.is_floating_point() else nearest_whole(mixed)).to(leaf.dtype)

    return tree_map(mix, models)


def collaborators(models: Tree, selection: Selection, num_rounds: int) -> Tensor:
    """For each of K models, the place of the one to mix it with [K].

    Args:
        models: each leaf [K, ...].
        selection: `in_order`, or by `highest` or `lowest` cosine similarity of parameters.
        num_rounds: before this one; in order, the distance grows with them.
    """
    vectors = torch.cat([leaf.flatten(1).double() for leaf in leaves(models["params"])], dim=1)
    num = len(vectors)
    if selection == "in_order":
        return (torch.arange(num) + num_rounds % max(num - 1, 1) + 1) % num
    unit = torch.nn.functional.normalize(vectors, dim=1)
    apart = (1 - unit @ unit.T).clamp(min=SAME) * (1 if selection == "highest" else -1)
    return first_lowest(apart.fill_diagonal_(torch.inf))
