"""FlexLoRA: the server averages products of LoRA; each client gets the best factors of its rank.

Bai, Chen, Qian, Yao, Li: Federated Fine-tuning of Large Language Models under Heterogeneous Tasks
and Client Resources. NeurIPS 2024, section 3. https://arxiv.org/abs/2402.11505

    M = sum_k n_k B_k A_k / sum_k n_k,   M = U S V^T,   B := U S, A := V^T   (the largest rank)
    A_k = the first r_k rows of A, B_k = the first r_k columns of B

So clients get the best approximation of M of their rank. Of each row of A, the largest element is
positive, which makes the decomposition unique. Singular values below 1e-4 of the largest count as
zero: their directions would be rounding errors, so the row of A stays, and the column of B is
zero. Ranks are those of `adapter.rank=[...]`, one for each member of `model=family`, the largest
first. Other trained weights are averaged.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Uploads, Weighting
from flfast.state.near_ties import EQUAL, first_lowest
from flfast.state.tree import Tree, add, merge
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.low_rank import averaged_products, factor_pairs


def flexlora(*, weighting: Weighting, initial: Tree, members: Sequence[Tree]) -> Algorithm:
    """FedAvg of products of LoRA."""
    pairs = factor_pairs(initial, algorithm="flexlora")

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        made = {}
        for a, b in pairs.items():
            like = server["params"][a], server["params"][b]
            made[a], made[b] = best_factors(uploads.mean["products"][a], *like)
        return merge(add(server, model_weights(uploads.mean)), {"params": made})

    averaged = averaged_products("flexlora", initial, members, weighting, factors=False)
    return replace(averaged, server_step=server_step)


def best_factors(product: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(A, B), shaped as `a` and `b`, whose product is the nearest one of their rank.

    Rows of `a` stay where the product has a lower rank.
    """
    u, sizes, v = torch.linalg.svd(product.double(), full_matrices=False)
    rank = min(len(a), int((sizes > EQUAL * sizes[0]).sum()))
    sign = v.gather(1, first_lowest(-v.abs()).unsqueeze(1)).sign()
    new_a, new_b = a.flatten(1).clone(), torch.zeros_like(b).flatten(1)
    new_a[:rank] = (sign * v)[:rank].to(a.dtype)
    new_b[:, :rank] = (u * sign.T * sizes)[:, :rank].to(b.dtype)
    return new_a.view_as(a), new_b.view_as(b)
