"""FedRS: local training restricts the softmax for classes that the client lacks.

Li, Zhan: FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data.
KDD 2021, restricted softmax. https://doi.org/10.1145/3447548.3467254

    h_k(w) = mean over examples of -log(exp(s_y) / sum_c exp(s_c))
    s_c = z_c for classes that the client has,   s_c = alpha * z_c for the others

z are the logits, and y is the label. The smaller alpha, the less do the weights of missing classes
move. The authors' code scales all classes smoothly instead, by alpha + (1 - alpha) * n_c / max n
with n_c examples of class c, and its last layer has no bias; here the bias is scaled with the
rest. The server's model is evaluated with the plain softmax.
"""

from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.state.options import PositiveUpToOne
from flfast.state.tree import Tree


def fedrs(*, alpha: PositiveUpToOne, weighting: Weighting) -> Algorithm:
    """FedAvg with a restricted softmax in the local objective; alpha = 1 is FedAvg."""

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        logits = task.logits(params, batch)
        factors = alpha + (1 - alpha) * (ctx.facts["labels"] > 0).to(logits.dtype)  # [C]
        return task.mean(F.cross_entropy(factors * logits, batch.targets, reduction="none"))

    return Algorithm(name="fedrs", weighting=weighting, facts=("labels",), loss=loss)
