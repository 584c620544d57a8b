"""FML: a shared and a personal model teach each other; only the shared one is uploaded.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: Federated Mutual Learning. 2020, Algorithm 1.
https://arxiv.org/abs/2006.16765

    w_k := w_k - eta * grad (beta  * F_k(w_k) + (1 - beta)  * KL(p(v_k), p(w_k)))   the meme model
    v_k := v_k - eta * grad (alpha * F_k(v_k) + (1 - alpha) * KL(p(w_k), p(v_k)))   the local model

KL(q, p) is the mean of sum_c q_c * log(q_c / p_c) over a batch; q is a constant. Both models are
in training mode and take their steps on the same batches. In the authors' code every v_k has
initial weights of its own, here those of the broadcast of the client's first round. PFLlib divides
KL by the number of classes, too. Clipping by norm takes the norm over both gradients.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.state.options import UpToOne
from flfast.state.tree import Tree
from flfast.zoo.algorithms.kit.divergence import divergence
from flfast.zoo.algorithms.kit.two_models import TwoModels


def fml(
    *,
    alpha: UpToOne,
    beta: UpToOne,
    weighting: Weighting,
    common: nn.Module | None,
    initial: Tree,
    seed: int,
) -> Algorithm:
    """FedAvg of models that learn from personal ones, and these from them; beta = 1 is FedAvg."""
    two = TwoModels(common, initial, seed)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        shared, personal = two.logits(task, params, batch)
        errors = (
            share * F.cross_entropy(logits, batch.targets, reduction="none")
            + (1 - share) * divergence(logits, teacher)
            for share, logits, teacher in ((beta, shared, personal), (alpha, personal, shared))
        )
        return task.mean(torch.stack(list(errors)).sum(0))

    return Algorithm(
        name="fml",
        tasks=("classification",),
        weighting=weighting,
        loss=loss,
        personal=lambda broadcast, client: client,
        **two.fields,
    )
