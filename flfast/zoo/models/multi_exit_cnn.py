"""A CNN with a classifier above each block, whose first blocks are a model of their own."""

from typing import cast

import torch
from torch import Tensor, nn

from flfast.models.images import check_image
from flfast.state.options import Count


class Exits(nn.ModuleList):
    """Linear classifiers, each of its own part of the features."""

    def forward(self, features: Tensor) -> Tensor:
        """Mean of the classifiers' logits [B, C], of features [B, D_1 + ... + D_E]."""
        layers = [cast("nn.Linear", layer) for layer in self]
        parts = features.split([layer.in_features for layer in layers], dim=1)
        found = [layer(part) for layer, part in zip(layers, parts, strict=True)]
        return torch.stack(found).mean(0)


class MultiExitCNN(nn.Module):
    """Blocks of a 3x3 convolution, BatchNorm and ReLU, pooled between; see `multi_exit_cnn`."""

    def __init__(self, width: int, num_classes: int, channels: list[int]) -> None:
        super().__init__()
        self.blocks, self.exits = nn.ModuleList(), Exits()
        for number, units in enumerate(channels):
            layers = [
                nn.Conv2d(width, units, kernel_size=3, padding=1),
                nn.BatchNorm2d(units),
                nn.ReLU(),
            ]
            self.blocks.append(nn.Sequential(*[nn.MaxPool2d(2)] * (number > 0), *layers))
            self.exits.append(nn.Linear(units, num_classes))
            width = units

    def forward(self, x: Tensor) -> Tensor:
        """Mean of the classifiers' logits [B, C], of images [B, channels, H, W]."""
        features = []
        for block in self.blocks:
            x = block(x)
            features.append(x.mean((2, 3)))
        outputs: Tensor = self.exits(torch.cat(features, dim=1))
        return outputs


def multi_exit_cnn(
    *, input_shape: tuple[int, ...], num_classes: int, channels: list[Count], depth: Count | None
) -> nn.Module:
    """Convolutional network from images [B, channels, H, W] to logits [B, C].

    Each block has a classifier of the means of its channels. The model's logits are their mean.

    Raises:
        ValueError: if there are fewer blocks than `depth`.
    """
    if depth is not None and depth > len(channels):
        raise ValueError(f"model.depth={depth}: allowed: null, or 1 to {len(channels)} blocks")
    used = [*channels][:depth]
    where = {"model": "model=multi_exit_cnn", "smallest": 2 ** (len(used) - 1)}
    width, *_ = check_image(input_shape, **where)
    return MultiExitCNN(width, num_classes, used)
