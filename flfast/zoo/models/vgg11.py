"""VGG-11: eight 3x3 convolutions with five poolings, and fully connected layers.

Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR
2015, configuration A. `hidden=[4096, 4096]` is the paper's on ImageNet: 132,863,336 parameters.
`hidden=[512, 512]` is usual for CIFAR's small images: 9,750,922 parameters.
"""

from collections import OrderedDict
from typing import Literal

from torch import nn

from flfast.models.images import check_image, norm_layer
from flfast.models.mlp import dense_layers
from flfast.state.options import BelowOne, Count

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Channels of the convolutions before each pooling."""


def vgg11(
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    hidden: list[Count],
    norm: Literal["none", "batch", "group"],
    groups: Count,
    dropout: BelowOne,
) -> nn.Module:
    """Convolutional network from images [B, channels, H, W], at least 32x32, to logits [B, C]."""
    width, rows, columns = check_image(input_shape, model="model=vgg11", smallest=32)
    make_norm = norm_layer(norm, groups)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for stage, widths in enumerate(_STAGES, start=1):
        for number, units in enumerate(widths, start=1):
            layers[f"conv{stage}_{number}"] = nn.Conv2d(width, units, kernel_size=3, padding=1)
            if norm != "none":
                layers[f"norm{stage}_{number}"] = make_norm(units)
            layers[f"relu{stage}_{number}"] = nn.ReLU()
            width = units
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    area = (rows // 32) * (columns // 32)
    top = dense_layers(width * area, hidden, num_classes, dropout=dropout)
    model = nn.Sequential(layers | top)
    model.apply(_initialise)
    return model


def _initialise(layer: nn.Module) -> None:
    # With torch's default, activations without normalisation shrink from layer to layer.
    if isinstance(layer, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)
