"""The CNN of pfl-research's CIFAR-10 benchmark: two 3x3 convolutions, one hidden layer, dropout.

Granqvist et al., "pfl-research: simulation framework for accelerating research in Private
Federated Learning", 2024, https://arxiv.org/abs/2404.06430: 1,626,442 parameters on CIFAR-10.
Weights begin with Glorot's uniform distribution, as in their code.
"""

from collections import OrderedDict

from torch import nn

from flfast.models.images import check_image


def pfl_cnn(*, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Convolutional network from images [B, channels, H, W], at least 6x6, to logits [B, C]."""
    channels, height, width = check_image(input_shape, model="model=pfl_cnn", smallest=6)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = nn.Conv2d(channels, 32, kernel_size=3)
    layers["relu1"] = nn.ReLU()
    layers["conv2"] = nn.Conv2d(32, 64, kernel_size=3)
    layers["relu2"] = nn.ReLU()
    layers["pool"] = nn.MaxPool2d(2)
    layers["dropout1"] = nn.Dropout(0.25)
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
    layers["relu3"] = nn.ReLU()
    layers["dropout2"] = nn.Dropout(0.5)
    layers["fc"] = nn.Linear(128, num_classes)
    for layer in layers.values():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return nn.Sequential(layers)
