"""Classifiers whose class vectors are a simplex, equally far from each other.

The simplex equiangular tight frame of C classes is V = sqrt(C / (C - 1)) * U (I - 1 1' / C), with
orthonormal columns U. Here U = I, so features are the C outputs of the model's last layer. That
layer learns any rotation. As V only moves all components alike and scales them, the largest output
of the model is that of the classifier. So the model predicts the same classes without it.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def simplex(num_classes: int, like: Tensor) -> Tensor:
    """V [C, C], in the data type and on the device of another tensor; columns are the classes.

    >>> simplex(2, torch.zeros(()))
    tensor([[ 0.7071, -0.7071],
            [-0.7071,  0.7071]])
    """
    eye = torch.eye(num_classes, dtype=like.dtype, device=like.device)
    return math.sqrt(num_classes / max(num_classes - 1, 1)) * (eye - 1 / num_classes)


def projections(outputs: Tensor, vectors: Tensor) -> Tensor:
    """Products [B, C] of outputs [B, D], scaled to length one, with class vectors [D, C]."""
    return F.normalize(outputs, dim=1) @ vectors.to(outputs.dtype)
