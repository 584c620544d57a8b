"""C models of the server, each trained by a group of the cohort; leaves are [C, ...]."""

import torch
from torch import Tensor

from flfast.algorithms.contract import Uploads
from flfast.algorithms.kit.several_models import one_of
from flfast.state.near_ties import nearest_whole
from flfast.state.tree import Tree, add, leaves, tree_map
from flfast.state.weights import model_weights


def equal_models(weights: Tree, num: int) -> Tree:
    """The same model C times."""
    return tree_map(lambda leaf: leaf.expand(num, *leaf.shape).clone(), model_weights(weights))


def group_means(models: Tree, before: Tensor, groups: Tensor, uploads: Uploads) -> Tree:
    """The models, each the mean of its group's uploads unless the group is empty.

    Args:
        models: before.
        before: places [K] of the models that the clients changed, in [0, C).
        groups: groups of the K clients that uploaded [K], in [0, C).
        uploads: with `params` and `buffers` as rows.
    """
    rows = add(one_of(models, before), model_weights(uploads.rows))
    means = tree_map(
        lambda m, r: m.to(torch.promote_types(m.dtype, r.dtype), copy=True), models, rows
    )
    for group in groups.unique().tolist():
        places = (groups == group).nonzero().flatten()
        weights = uploads.weights[places]

        def average(model: Tensor, rows: Tensor) -> Tensor:
            mean = weighted_mean(rows[places], weights)  # noqa: B023 - called at once
            return model[group].copy_(mean)  # noqa: B023

        tree_map(average, means, rows)
    return means


def mean_of(models: Tree, weights: Tensor | None = None) -> Tree:
    """The mean of the models, weighted by float64 [C]; None weighs all the same."""
    num = len(next(leaves(models)))
    weights = torch.ones(num, dtype=torch.float64) if weights is None else weights
    return tree_map(lambda leaf: weighted_mean(leaf, weights).to(leaf.dtype), models)


def weighted_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of rows [K, ...], in float64; counts are rounded."""
    mean = torch.tensordot(weights / weights.sum(), rows.double(), dims=1)
    return mean if rows.is_floating_point() else nearest_whole(mean)
