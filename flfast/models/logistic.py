"""Multinomial logistic regression."""

from torch import nn

from flfast.models.mlp import mlp


def logistic(*, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Linear model from flattened inputs [B, ...] to logits [B, C]."""
    return mlp(input_shape=input_shape, num_classes=num_classes, hidden=[], dropout=0)
