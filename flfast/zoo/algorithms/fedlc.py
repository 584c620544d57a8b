"""FedLC: local training calibrates the logits by how many examples the client has of each class.

Zhang, Li, Li, Xu, Wu, Ding, Wu: Federated Learning with Label Distribution Skew via Logits
Calibration. ICML 2022, the fine-grained calibrated cross-entropy. https://arxiv.org/abs/2209.00189

    h_k(w) = mean over examples of -log(exp(s_y) / sum_c exp(s_c)),   s_c = z_c - tau * n_c^(-1/4)

z are the logits, y is the label, and n_c is the number of training examples of class c that the
client has. The equation is not defined for classes that the client lacks. As in popular code they
get n_c = 1e-8, so their logits decrease by 100 * tau: nearly no gradient reaches them. The
server's model is evaluated without the calibration.
"""

from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.state.options import NonNegative
from flfast.state.tree import Tree

EPS = 1e-8
"""Count of a missing class: an infinite margin times tau = 0 would be NaN."""


def fedlc(*, tau: NonNegative, weighting: Weighting) -> Algorithm:
    """FedAvg with calibrated logits in the local objective; tau = 0 is FedAvg."""

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        logits = task.logits(params, batch)
        margins = tau * ctx.facts["labels"].clamp(min=EPS) ** -0.25  # [C], float64
        calibrated = logits - margins.to(logits.dtype)
        return task.mean(F.cross_entropy(calibrated, batch.targets, reduction="none"))

    return Algorithm(name="fedlc", weighting=weighting, facts=("labels",), loss=loss)
