"""FedKD: private mentors and a shared mentee teach each other; only the mentee is uploaded.

Wu, Wu, Lyu, Huang, Xie: Communication-Efficient Federated Learning via Knowledge Distillation.
Nature Communications, 2022. https://arxiv.org/abs/2108.13323

    h_k(w) = F_k(w) + lam * (KL(p(v_k), p(w)) + MSE(z(v_k), z(w) W_k')) / (F_k(w) + F_k(v_k))
    h_k(v) = F_k(v) + lam * (KL(p(w_k), p(v)) + MSE(z(v), z(w_k) W_k')) / (F_k(w_k) + F_k(v))

z are the inputs of the last layer, KL(q, p) the mean of sum_c q_c * log(q_c / p_c) over a batch.
Either objective takes the other model as a constant. w is the mentee, v_k the mentor, and W_k
learns from h_k(w) and starts as the identity. The authors' code and PFLlib differentiate the sum
h_k(w) + h_k(v) by both models, and divide KL by the number of classes, too. With `model.common`
mentors have models of their own. Left out: the loss of attention maps, and the SVD of updates, for
its ranks differ between clients and uploads of a round must have the same shapes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.algorithms.kit.last_layer import linear_head
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, without
from flfast.zoo.algorithms.kit.two_models import TwoModels

PROJECTION, EPS = "fedkd/projection", 1e-8


def fedkd(
    *,
    lam: NonNegative,
    head: list[str] | None,
    weighting: Weighting,
    common: nn.Module | None,
    initial: Tree,
    seed: int,
) -> Algorithm:
    """FedAvg of mentees that learn from private mentors; lam = 0 is FedAvg and local training.

    The head must be one linear layer.
    """
    top = linear_head(initial, head)
    like = initial["params"][top.names[0]]
    projection = {"params": {PROJECTION: torch.eye(top.shape[1], dtype=like.dtype)}}
    two = TwoModels(common, initial, seed, beside=projection)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        w, v = two.outputs(task, params, batch, top)
        own = [w.logits.log_softmax(1), v.logits.log_softmax(1)]
        hidden = [F.linear(w.features, two.own_part(params)[PROJECTION]), v.features]
        errors = [w.loss, v.loss]
        total = w.loss + v.loss
        for i, j in ((0, 1), (1, 0)):
            taught = F.kl_div(own[i], own[j].detach(), reduction="batchmean", log_target=True)
            taught = taught + F.mse_loss(hidden[i], hidden[j].detach())
            total = total + lam * taught / (errors[i] + errors[j].detach() + EPS)
        return total

    return Algorithm(
        name="fedkd",
        tasks=("classification",),
        weighting=weighting,
        loss=loss,
        separable=False,
        personal=lambda broadcast, client: without(client, projection),
        **two.fields,
    )
