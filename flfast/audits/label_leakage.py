"""Labels of a batch from the gradient of the last layer.

The gradient of the cross-entropy by the bias of class c is the mean over the batch of
p_c - [y = c]. So it is negative only for classes that the batch has. Zhao, Mopuri, Bilen: iDLG:
Improved Deep Leakage from Gradients, arXiv:2001.02610, equation 3, for one example. Wainakh et
al.: User-Level Label Leakage from Gradients in Federated Learning, PoPETs 2022, algorithm 1, for
classes that occur more than once.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def leaked_labels(gradient: Mapping[str, Tensor], num_classes: int, num_labels: int) -> Tensor:
    """The most likely labels of a batch, int64 [B], ascending; certain if B = 1.

    Args:
        gradient: gradient by parameter name, in the order of the model, up to a positive factor.
        num_classes: C.
        num_labels: B.

    Raises:
        ValueError: if no layer has C outputs.
    """
    found = class_gradient(gradient, num_classes).double().clone()
    negative = (found < 0).nonzero().flatten()
    negative = negative[found[negative].argsort()][:num_labels]
    # What one example adds, estimated from all of them; equation 5 of Wainakh et al.
    impact = found[found < 0].sum() * (1 + 1 / num_classes) / num_labels
    labels = negative.tolist()
    found[negative] -= impact
    while len(labels) < num_labels:
        label = int(found.argmin())
        labels.append(label)
        found[label] -= impact
    return torch.tensor(sorted(labels))


def class_gradient(gradient: Mapping[str, Tensor], num_classes: int) -> Tensor:
    """Gradient by the last layer's bias [C], or row sums of its weights if it has no bias.

    Raises:
        ValueError: if no layer has C outputs.
    """
    fitting = [leaf for leaf in gradient.values() if leaf.shape[:1] == (num_classes,)]
    if not fitting:
        raise ValueError(
            f"audit.labels=recovered: no layer of the model has {num_classes} outputs; allowed: "
            f"audit.labels=known"
        )
    return fitting[-1].flatten(start_dim=1).sum(dim=1) if fitting[-1].ndim > 1 else fitting[-1]
