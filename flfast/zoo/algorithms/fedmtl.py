"""FedMTL: personal models that are pulled together, as MOCHA's with a fixed relation matrix.

Smith, Chiang, Sanjabi, Talwalkar: Federated Multi-Task Learning. NeurIPS 2017, equations 1 and 3.
https://arxiv.org/abs/1705.10467

    min sum_k F_k(w_k) + lam * tr(W * Omega * W^T),   Omega = I - 1 * 1^T / K
    h_k(w) = F_k(w) + lam * (1 - 1 / K) * |w - u_k|^2,   u_k = mean of w_j over j != k

tr(...) is sum_k |w_k - mean w|^2, and h_k its part that depends on w_k = w. j runs over the K
clients of the round's cohort with the models that they uploaded last, in the paper over all. MOCHA
solves the dual for linear models and may learn Omega; here clients take local steps on h_k. Its
second term, lambda_2 * |W|^2, is the optimizer's weight decay. PFLlib's pull has no gradient.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Records, Task
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, squared_norm, sub, tree_map
from flfast.zoo.algorithms.kit.private_models import private_models


def fedmtl(*, lam: NonNegative, initial: Tree) -> Algorithm:
    """Personal models, each pulled to the mean of the others."""

    def send(server: Tree, records: Records, clients: Sequence[int]) -> Tree:
        num, models = len(clients), records[clients]["params"]
        means = tree_map(lambda w: (w.sum(0) - w) / max(num - 1, 1), models)
        return {
            "u": means,
            "strength": torch.full((num,), lam * (1 - 1 / num), dtype=torch.float64),
        }

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        far = squared_norm(sub(ctx.server["u"], params))
        return task(params, batch) + ctx.server["strength"].to(far) * far

    return replace(
        private_models("fedmtl", initial, known=lambda sent: {"params": sent["u"]}),
        send=send,
        loss=loss,
    )
