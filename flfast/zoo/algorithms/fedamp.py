"""FedAMP: clients whose models are alike attract each other's.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID
Data. AAAI 2021, equation 4, Algorithm 1. https://arxiv.org/abs/2007.03797

    A'_kj = exp(-|w_k - w_j|^2 / sigma) / sigma
    u_k = (1 - alpha * sum_{j != k} A'_kj) * w_k + alpha * sum_{j != k} A'_kj * w_j
    w_k = argmin F_k(w) + lam / (2 * alpha) * |w - u_k|^2,   by local training from w_k

j runs over the round's cohort, and w_j is the model that j uploaded last. The paper has all
clients in every round, and lowers alpha with the rounds. In PFLlib the regulariser is a norm
without the square, and has no gradient.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from flfast.algorithms.contract import Algorithm, Batch, Context, Records, Task
from flfast.state.options import NonNegative, Positive
from flfast.state.tree import Tree, leaves, squared_norm, sub, tree_map
from flfast.zoo.algorithms.kit.private_models import private_models


def fedamp(*, lam: NonNegative, alpha: Positive, sigma: Positive, initial: Tree) -> Algorithm:
    """Personal models, each pulled to a mean of models that are like it."""

    def send(server: Tree, records: Records, clients: Sequence[int]) -> Tree:
        models = records[clients]["params"]
        flat = torch.cat([leaf.flatten(1) for leaf in leaves(models)], dim=1).double()
        weights = alpha / sigma * torch.exp(-torch.cdist(flat, flat).square() / sigma)
        weights.fill_diagonal_(0).diagonal().copy_(1 - weights.sum(1))
        return {"u": tree_map(lambda w: torch.tensordot(weights.to(w), w, 1), models)}

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> torch.Tensor:
        far = squared_norm(sub(ctx.server["u"], params))
        return task(params, batch) + lam / (2 * alpha) * far

    return replace(
        private_models("fedamp", initial, known=lambda sent: {"params": sent["u"]}),
        send=send,
        loss=loss,
    )
