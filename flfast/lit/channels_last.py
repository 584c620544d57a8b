"""Memory layout of images: channels last, in which convolutions and pooling run fastest.

On CPUs a small CNN takes two thirds of the time; on GPUs tensor cores want it.
"""

from typing import Any

import torch
from torch import Tensor, nn


def use_channels_last(model: nn.Module) -> None:
    """Lay out a model's convolutions, and every batch of images it reads; others stay."""
    if any(isinstance(module, nn.Conv2d) for module in model.modules()):
        model.to(memory_format=torch.channels_last)
        model.register_forward_pre_hook(_lay_out_images)


def channels_last(images: Tensor) -> Tensor:
    """Images [B, channels, H, W] with the same values, channels last in memory."""
    if images.shape[1] > 1:
        return images.contiguous(memory_format=torch.channels_last)
    # torch takes one channel for either layout, and goes on in the slower one unless told.
    height, width = images.shape[-2:]
    return images.contiguous().as_strided(images.shape, (height * width, 1, width, 1))


def _lay_out_images(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    images = args[0]
    return (channels_last(images), *args[1:]) if images.dim() == 4 else args
