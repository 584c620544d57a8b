"""FedUV: penalties on classifiers that vary too little, and on features that are too near.

Son, Kim, Chung, Huang, Liu: FedUV: Uniformity and Variance for Heterogeneous Federated Learning.
CVPR 2024. https://arxiv.org/abs/2402.18372

    h_k(w) = F_k(w) + variance * mean_c relu(1 / sqrt(C) - std_i softmax(g_i)_c)
             + uniformity * mean_{i < j} exp(-|z_i - z_j|^2 / median)

i and j are examples of a batch, z their features before the last layer, g their logits. For labels
that have each class once, the standard deviation of a class is 1 / sqrt(C). The median is the
lower one of the squared distances that are not 0, and has a gradient, which ties share, as in the
authors' code. There it is of a selection, whose size depends on the data. Here all distances are
sorted, zeros last, and the one in the middle of the others is gathered: shapes are fixed, so that
clients can be stacked. Batches of one example have no penalty. A batch of B takes memory for
B^2 D numbers.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.algorithms.kit.last_layer import linear_head
from flfast.state.options import NonNegative
from flfast.state.tree import Tree


def feduv(
    *,
    variance: NonNegative,
    uniformity: NonNegative,
    head: list[str] | None,
    weighting: Weighting,
    initial: Tree,
) -> Algorithm:
    """FedAvg with both penalties in the local objective; without them it is FedAvg."""
    top = linear_head(initial, head)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z, error = task.features(params, batch, layer=top.layer)
        if len(z) == 1:
            return error
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        lacking = lack_of_variance(top.logits(params, z))
        return error + variance * lacking + uniformity * nearness(z)

    # Both penalties are those of whole batches, without padding.
    return Algorithm(
        name="feduv",
        tasks=("classification",),
        weighting=weighting,
        separable=False,
        loss=loss,
    )


def lack_of_variance(logits: Tensor) -> Tensor:
    """Mean over classes of relu(1 / sqrt(C) - standard deviation of their probability) [].

    >>> lack_of_variance(torch.zeros(5, 4))
    tensor(0.5000)
    """
    deviations = logits.softmax(1).std(0)
    return F.relu(logits.shape[1] ** -0.5 - deviations).mean()


def nearness(features: Tensor) -> Tensor:
    """Mean over pairs of exp(-squared distance / median) [], of features [B, D], B > 1.

    It is 1 if all are equal, and has no gradient then.

    >>> float(nearness(torch.tensor([[0.0], [0.0], [1.0]])))  # (1 + 2 / e) / 3
    0.57858...
    """
    num = len(features)
    far = (features.unsqueeze(0) - features.unsqueeze(1)).square().sum(2).flatten()  # [B * B]
    apart = far > 0
    # Every pair is there twice, which keeps the lower median.
    middle = (apart.sum() - 1).clamp(min=0) // 2
    in_order = torch.where(apart, far, torch.inf).detach().sort().values
    at = apart & (far == in_order.gather(0, middle.unsqueeze(0)))
    median = torch.where(at, far, 0).sum() / at.sum().clamp(min=1)
    median = torch.where(apart.any(), median, 1.0)
    return ((-far / median).exp().sum() - num) / (num * (num - 1))
