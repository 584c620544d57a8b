"""FedDecorr: a penalty on correlated features counters the collapse of their dimensions.

Shi, Liang, Zhang, Tan, Bai: Towards Understanding and Mitigating Dimensional Collapse in
Heterogeneous Federated Learning. ICLR 2023, section 4. https://arxiv.org/abs/2210.00226

    z = features of the batch before the head [N, d], each with mean 0 and variance 1
    K = z' z / N,   the correlation matrix [d, d]
    h_k(w) = F_k(w) + beta / d^2 * |K|_F^2

The authors' code does not divide z' z by N, but its squares by N, and leaves out the diagonal. Its
penalty is (N - 1)^2 / N times as strong: with batches of 64, its beta = 0.1 is beta = 6.2 here.
"""

import torch
from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.algorithms.kit.split import head_layer
from flfast.state.options import NonNegative
from flfast.state.tree import Tree


def feddecorr(
    *, beta: NonNegative, head: list[str] | None, weighting: Weighting, initial: Tree
) -> Algorithm:
    """FedAvg with a decorrelating local objective; beta = 0 is FedAvg."""
    layer = head_layer(initial, head)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        features, error = task.features(params, batch, layer=layer)
        return error + beta * mean_squared_correlation(features)

    # Correlations are those of whole batches, without padding.
    return Algorithm(name="feddecorr", weighting=weighting, separable=False, loss=loss)


def mean_squared_correlation(features: Tensor) -> Tensor:
    """|K|_F^2 / d^2 [] of features [N, d]: 1 / d if they are uncorrelated, 1 if they are equal.

    >>> mean_squared_correlation(torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]]))
    tensor(0.5000)
    """
    z = features.to(torch.promote_types(features.dtype, torch.float32))  # 1e-8 is 0 in float16
    num, dims = z.shape
    z = z - z.mean(0)
    z = z * (z.square().mean(0) + 1e-8).rsqrt()  # features may be constant in a batch
    # z z' has the same norm as z' z, and is smaller for small batches.
    product = z @ z.T if num < dims else z.T @ z
    return (product / num).square().sum() / dims**2
