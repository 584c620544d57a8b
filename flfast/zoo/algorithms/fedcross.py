"""FedCross: K models move from client to client, and each is mixed with another one every round.

Hu, Zhou, Yue, Ling, Huang, Li, Liu, Lian, Chen: FedCross: Towards Accurate Federated Learning via
Multi-Model Cross-Aggregation. ICDE 2024, Algorithm 1. https://arxiv.org/abs/2210.08285

    v_i = local training from w_i, by a client of the cohort drawn for i
    w_i := alpha * v_i + (1 - alpha) * v_j
    j = (i + (t - 1) mod (K - 1) + 1) mod K, or of the highest or lowest cosine with v_i
    w = mean of w_i, which is only evaluated

A model without a client stays; with several, it is their mean. PFLlib overwrites t by a place.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Part, Records, Uploads
from flfast.algorithms.kit.model_groups import equal_models, group_means, mean_of
from flfast.algorithms.kit.several_models import one_of
from flfast.state.near_ties import first_lowest, nearest_whole
from flfast.state.options import Count, PositiveUpToOne, UpToOne
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, leaves, tree_map

ROWS = Part("rows")
Selection = Literal["in_order", "highest", "lowest"]
SAME = 1e-12
"""One minus the cosine of models that are equal but for rounding of float32, or less."""


def fedcross(
    *,
    alpha: UpToOne,
    selection: Selection,
    num_models: Count | None,
    fraction: PositiveUpToOne | None,
    seed: int,
    num_clients: int,
) -> Algorithm:
    """Federated learning of K models that stay close to each other."""
    num = num_models or max(1, round((fraction or 1.0) * num_clients))

    def server_state(weights: Tree) -> Tree:
        return {**weights, "models": equal_models(weights, num), "rounds": torch.tensor(0)}

    def send(server: Tree, records: Records, clients: Sequence[int]) -> Tree:
        rng = torch_generator(seed, "fedcross", int(server["rounds"]))
        places = torch.randperm(num, generator=rng).repeat(len(clients) // num + 1)[: len(clients)]
        return {**one_of(server["models"], places), "place": places}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        places = uploads.rows["place"]
        models = group_means(server["models"], places, places, uploads)
        models = cross_aggregated(models, alpha, selection, int(server["rounds"]))
        return {**mean_of(models), "models": models, "rounds": server["rounds"] + 1}

    return Algorithm(
        name="fedcross",
        weighting="uniform",
        server_state=server_state,
        broadcast=lambda server: {"params": {}, "buffers": {}},
        send=send,
        finish=lambda done, ctx: (
            {**ctx.change(done.weights), "place": ctx.server["place"]},
            ctx.client,
        ),
        parts={"params": ROWS, "buffers": ROWS, "place": Part("rows", learned=False)},
        server_step=server_step,
    )


def cross_aggregated(models: Tree, alpha: float, selection: Selection, num_rounds: int) -> Tree:
    """`alpha * model + (1 - alpha) * other` for each model; counts are rounded.

    Leaves of the models are [K, ...]. The other one is chosen by `selection`, see `collaborators`;
    there were `num_rounds` before this one.
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
