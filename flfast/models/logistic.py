"""Multinomial logistic regression."""

import math
from collections import OrderedDict

from torch import nn


def logistic(*, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Linear model from flattened inputs [B, ...] to logits [B, C].

    Args:
        input_shape: shape of one input.
        num_classes: C.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(math.prod(input_shape), num_classes)
    return nn.Sequential(layers)
