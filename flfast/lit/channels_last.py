"""The channels-last memory layout, in which convolutions and pooling run fastest.

It saves a third of the time of a small CNN on CPUs. On GPUs tensor cores need it.
"""

from typing import Any

import torch
from torch import Tensor, nn


def use_channels_last(model: nn.Module) -> None:
    """Store a model's convolutions and its input images channels last; other models stay."""
    if any(isinstance(module, nn.Conv2d) for module in model.modules()):
        model.to(memory_format=torch.channels_last)
        model.register_forward_pre_hook(_lay_out_images)


def channels_last(images: Tensor) -> Tensor:
    """Images [B, channels, H, W] in channels-last layout."""
    if images.shape[1] > 1:
        return images.contiguous(memory_format=torch.channels_last)
    # With one channel both layouts are the same memory, and torch assumes the slower one.
    height, width = images.shape[-2:]
    return images.contiguous().as_strided(images.shape, (height * width, 1, width, 1))


def _lay_out_images(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    images = args[0]
    return (channels_last(images), *args[1:]) if images.dim() == 4 else args
