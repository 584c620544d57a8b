"""The CNN of FedAvg: two 5x5 convolutions with max pooling, one hidden layer.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, section 3: padding=2, 1,663,370 parameters on MNIST.
padding=0 is PFLlib's FedAvgCNN with 582,026 parameters.
"""

from collections import OrderedDict

from torch import nn

from flfast.models.images import check_image
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
    in_channels, height, width = check_image(
        input_shape,
        model=f"model=cnn with model.padding={padding}",
        smallest=_smallest(padding),
        remedy="model.padding=2" if min(input_shape[1:], default=0) >= _smallest(2) else "",
    )
    first, second = channels
    area = _pooled(_pooled(height, padding), padding) * _pooled(_pooled(width, padding), padding)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = nn.Conv2d(in_channels, first, kernel_size=5, padding=padding)
    layers["relu1"] = nn.ReLU()
    layers["pool1"] = nn.MaxPool2d(2)
    layers["conv2"] = nn.Conv2d(first, second, kernel_size=5, padding=padding)
    layers["relu2"] = nn.ReLU()
    layers["pool2"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(second * area, hidden)
    layers["relu3"] = nn.ReLU()
    layers["fc"] = nn.Linear(hidden, num_classes)
    return nn.Sequential(layers)


def _pooled(side: int, padding: int) -> int:
    """Side length after a 5x5 convolution and a 2x2 pool."""
    return (side + 2 * padding - 4) // 2


def _smallest(padding: int) -> int:
    """Smallest input side that leaves a pixel after both convolutions."""
    side = 1
    for _ in range(2):
        side = max(1, 2 * side + 4 - 2 * padding)
    return side
