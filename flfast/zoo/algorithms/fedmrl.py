"""FedMRL: a projection fuses features of a shared small model with those of the client's own one.

Yi, Yu, Ren, Wang, Liu, Li: Federated Model Heterogeneous Matryoshka Representation Learning.
NeurIPS 2024. https://arxiv.org/abs/2406.00488

    r_i = P_k [z(w, i), z(v_k, i)],   F_k = mean_i (CE(w at r_i[:d], y_i) + CE(v_k at r_i, y_i))
    (w_k, v_k, P_k) := SGD on F_k(w, v_k, P_k),   w := sum_k n_k / n * w_k

z are the inputs of the last layer: d of the shared model w, D >= d of the client's own v_k; "at r"
is that layer at r. P_k is linear, [d + D] -> [D], and stays on the client with v_k. v_k at r
predicts. These are the equations of FedMRL_hetero.py of the authors' code
(github.com/LipingYi/FedMRL). FedMRL_homo.py, for clients with one architecture, ties the last
layer of w to the first d columns of that of v_k. Both clip the gradients of w, v_k and P_k at norm
50, and evaluate with w_k. HtFLlib evaluates with w, as here, and averages w_k with equal weights.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.algorithms.kit.last_layer import linear_head
from flfast.algorithms.kit.own_module import OwnModule
from flfast.state.options import Count
from flfast.state.tree import Tree
from flfast.zoo.algorithms.kit.two_models import TwoModels


def fedmrl(
    *,
    sub_dim: Count | None,
    weighting: Weighting,
    common: nn.Module | None,
    initial: Tree,
    seed: int,
) -> Algorithm:
    """FedAvg of a small model whose features also serve the clients' own models.

    Raises:
        ValueError: if `sub_dim` does not fit the models.
    """
    top = linear_head(initial, None)
    size = top.shape[1]
    if sub_dim is not None and (common is None or sub_dim > size):
        raise ValueError(
            f"algorithm.sub_dim={sub_dim}: allowed: null; with model.common also 1 to {size}, the "
            f"number of features of the client's own model"
        )
    dim = size if common is None else sub_dim or max(size // 4, 1)
    projection = OwnModule("projection", lambda: nn.Linear(dim + size, size), initial, seed=seed)
    two = TwoModels(common, initial, seed, beside=projection.initial, common_dim=dim)
    shared_top = linear_head(two.shared, None)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        w, v = two.outputs(task, params, batch, top)
        own = two.own_part(params)
        fused = projection(own, torch.cat([w.features, v.features], 1))
        both = shared_top.logits(params, fused[:, :dim]), top.logits(own, fused)
        errors = [F.cross_entropy(logits, batch.targets, reduction="none") for logits in both]
        return task.mean(errors[0] + errors[1])

    def predict(task: Task, weights: Tree, batch: Batch) -> Tensor:
        z = two.fixed_features(task, weights, batch, top)
        return top.logits(weights, projection(weights, torch.cat(z, 1)))

    return Algorithm(
        name="fedmrl",
        tasks=("classification",),
        weighting=weighting,
        loss=loss,
        personal=two.personal,
        predict=predict,
        **two.fields,
    )
