"""FedNTD: local training keeps what the server's model knows about the other classes.

Lee, Jeong, Shin, Bae, Yun: Preservation of the Global Knowledge by Not-True Distillation in
Federated Learning. NeurIPS 2022, section 4. https://arxiv.org/abs/2106.03097

    q(c) = exp(z_c / tau) / sum_c' exp(z_c' / tau)   over the classes c, c' other than the true one
    h_k(w) = F_k(w) + beta * tau^2 * mean over examples of KL(q of w[t], q of w)

z are the logits of the server's model w[t], in evaluation mode, and of the local model w. The
authors' code has the factor tau^2, which keeps gradients of one size when tau changes. With two
classes the term is zero.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.state.options import NonNegative, Positive
from flfast.state.tree import Tree
from flfast.state.weights import by_name
from flfast.zoo.algorithms.kit.divergence import divergence


def fedntd(*, beta: NonNegative, tau: Positive, weighting: Weighting) -> Algorithm:
    """FedAvg with not-true distillation in the local objective; beta = 0 is FedAvg."""

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        logits, targets = task.logits(params, batch), batch.targets
        fixed = task.fixed_logits(by_name(ctx.start), batch)
        local, server = (not_true(z, targets) / tau for z in (logits, fixed))
        error = F.cross_entropy(logits, targets, reduction="none")
        return task.mean(error + beta * tau**2 * divergence(local, server))

    return Algorithm(name="fedntd", tasks=("classification",), weighting=weighting, loss=loss)


def not_true(logits: Tensor, targets: Tensor) -> Tensor:
    """Logits [B, C - 1] of the classes other than the targets [B], from the next class on.

    >>> not_true(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1]))
    tensor([[3., 1.]])
    """
    num_classes = logits.shape[1]
    others = targets.unsqueeze(1) + torch.arange(1, num_classes, device=targets.device)
    return logits.gather(1, others % num_classes)
