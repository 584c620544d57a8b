"""Multilayer perceptron.

Two hidden layers of 200 units are the 2NN of McMahan, Moore, Ramage, Hampson, Aguera y Arcas,
"Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017: 199,210
parameters on MNIST.
"""

import math
from collections import OrderedDict

from torch import nn

from flfast.state.options import BelowOne, Count


def mlp(
    *, input_shape: tuple[int, ...], num_classes: int, hidden: list[Count], dropout: BelowOne
) -> nn.Module:
    """ReLU network from flattened inputs [B, ...] to logits [B, C]; without `hidden` linear."""
    width = math.prod(input_shape)
    return nn.Sequential(dense_layers(width, hidden, num_classes, dropout=dropout))


def dense_layers(
    width: int, hidden: list[int], num_classes: int, *, dropout: float = 0, relus: int = 0
) -> OrderedDict[str, nn.Module]:
    """Layers from flattened inputs [B, width] to logits, by name, behind some ReLUs."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["flatten"] = nn.Flatten()
    for number, units in enumerate(hidden, start=1):
        layers[f"fc{number}"] = nn.Linear(width, units)
        layers[f"relu{relus + number}"] = nn.ReLU()
        # Dropout(0) would draw random numbers for every batch all the same.
        if dropout:
            layers[f"dropout{number}"] = nn.Dropout(dropout)
        width = units
    layers["fc"] = nn.Linear(width, num_classes)
    return layers
