"""Checks that data fit a shift; errors name the key, the value and what is allowed."""

import torch

from flfast.datamodules.examples import Examples
from flfast.state.image_shape import refuse_channels_last


def need_images(option: str, examples: Examples) -> None:
    """Refuse data that are not images [channels, H, W]."""
    if len(examples.input_shape) != 3 or not are_numbers(examples):
        raise ValueError(
            f"shift={option} with inputs of shape {list(examples.input_shape)}; allowed: images "
            f"of shape [channels, height, width]"
        )
    refuse_channels_last(examples.input_shape)


def input_dtype(examples: Examples) -> torch.dtype:
    """Type of the inputs, in memory or on disk."""
    return examples.inputs[0].dtype


def are_numbers(examples: Examples) -> bool:
    """Whether inputs are bytes or floating-point numbers."""
    found = input_dtype(examples)
    return found == torch.uint8 or found.is_floating_point
