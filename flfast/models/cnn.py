"""The CNN of FedAvg: two 5x5 convolutions with max pooling, one hidden layer.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, section 3: padding=2, 1,663,370 parameters on MNIST.
padding=0 is PFLlib's FedAvgCNN with 582,026 parameters.
"""

import math
from collections import OrderedDict

from torch import nn

from flfast.models.images import check_image
from flfast.models.mlp import dense_layers
from flfast.state.options import Count, NonNegativeInt


def cnn(
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    channels: list[Count],
    hidden: Count,
    padding: NonNegativeInt,
) -> nn.Module:
    """Convolutional network from images [B, channels, H, W] to logits [B, C]."""
    if len(channels) != 2:
        raise ValueError(f"model.channels={[*channels]} must have 2 values, one per convolution")
    shape = check_image(
        input_shape,
        model=f"model=cnn with model.padding={padding}",
        smallest=_smallest(padding),
        remedy="model.padding=2" if min(input_shape[1:], default=0) >= _smallest(2) else "",
    )
    return pooled_cnn(shape, [(units, padding) for units in channels], [hidden], num_classes)


def pooled_cnn(
    shape: tuple[int, ...],
    convolutions: list[tuple[int, int]],
    hidden: list[int],
    num_classes: int,
) -> nn.Module:
    """5x5 convolutions of (channels, padding), each with ReLU and a 2x2 pool; hidden layers."""
    width, *sides = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (units, padding) in enumerate(convolutions, start=1):
        layers[f"conv{number}"] = nn.Conv2d(width, units, kernel_size=5, padding=padding)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        width, sides = units, [(side + 2 * padding - 4) // 2 for side in sides]
    area = math.prod(sides)
    top = dense_layers(width * area, hidden, num_classes, relus=len(convolutions))
    return nn.Sequential(layers | top)


def _smallest(padding: int) -> int:
    """Smallest input side that leaves a pixel after both convolutions."""
    side = 1
    for _ in range(2):
        side = max(1, 2 * side + 4 - 2 * padding)
    return side
