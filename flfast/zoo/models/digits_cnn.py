"""The CNN of FedBN for digits: BatchNorm behind every convolution and hidden layer.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization. ICLR 2021, appendix. https://arxiv.org/abs/2102.07623. The authors' DigitModel has
14,219,210 parameters on images of 3 x 28 x 28.
"""

from collections import OrderedDict

from torch import nn

from flfast.models.images import check_image
from flfast.state.options import Count


def digits_cnn(
    *, input_shape: tuple[int, ...], num_classes: int, channels: list[Count], hidden: list[Count]
) -> nn.Module:
    """Convolutional network from images [B, channels, H, W] to logits [B, C].

    The first two of three 5x5 convolutions are pooled.
    """
    if len(channels) != 3:
        raise ValueError(f"model.channels={[*channels]} must have 3 values, one per convolution")
    width, height, breadth = check_image(input_shape, model="model=digits_cnn", smallest=4)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, units in enumerate(channels, start=1):
        layers[f"conv{number}"] = nn.Conv2d(width, units, kernel_size=5, padding=2)
        layers[f"bn{number}"] = nn.BatchNorm2d(units)
        layers[f"relu{number}"] = nn.ReLU()
        if number < 3:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
        width = units
    layers["flatten"] = nn.Flatten()
    width *= (height // 4) * (breadth // 4)
    for number, units in enumerate(hidden, start=1):
        layers[f"fc{number}"] = nn.Linear(width, units)
        layers[f"bn{number + 3}"] = nn.BatchNorm1d(units)
        layers[f"relu{number + 3}"] = nn.ReLU()
        width = units
    layers["fc"] = nn.Linear(width, num_classes)
    return nn.Sequential(layers)
