"""Models of exported runs."""

import torch
from torch import nn


def conv_net(input_shape, num_classes):
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(4 * height * width, num_classes),
    )


class Noisy(nn.Sequential):
    """The layers of `conv_net` and noise: no export can agree with it."""

    def __init__(self, input_shape, num_classes):
        super().__init__(*conv_net(input_shape, num_classes))

    def forward(self, inputs):
        logits = super().forward(inputs)
        return logits + torch.rand_like(logits)


class Branching(Noisy):
    """The layers of `conv_net`, and a branch that depends on its inputs and cannot be traced."""

    def forward(self, inputs):
        return inputs.flatten(1)[:, :10] if inputs.sum() > 0 else super().forward(inputs)
