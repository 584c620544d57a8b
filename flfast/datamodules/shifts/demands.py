"""Checks that data fit a shift; errors name the key, the value and what is allowed."""

import torch

from flfast.datamodules.examples import Examples
from flfast.state.image_shape import refuse_channels_last

_COLOURS = 3


def need_images(option: str, examples: Examples) -> None:
    """Refuse data that are not images [channels, H, W]."""
    if len(examples.input_shape) != 3 or not _are_numbers(examples):
        raise ValueError(
            f"shift={option} with inputs of shape {list(examples.input_shape)}; allowed: images "
            f"of shape [channels, height, width]"
        )
    refuse_channels_last(examples.input_shape)


def need_bytes(option: str, examples: Examples) -> None:
    """Refuse images whose pixels are not bytes, so that their range is not known."""
    need_images(option, examples)
    found = input_dtype(examples)
    if found != torch.uint8:
        raise ValueError(f"shift={option} with inputs of type {found}; allowed: torch.uint8")


def need_numbers(option: str, examples: Examples) -> None:
    """Refuse inputs such as tokens, which are neither bytes nor floating-point numbers."""
    if not _are_numbers(examples):
        raise ValueError(
            f"shift={option} with inputs of type {input_dtype(examples)}; allowed: floating-point "
            f"numbers, or torch.uint8"
        )


def need_colours(key: str, value: object, examples: Examples) -> None:
    """Refuse a setting that only images with three channels can have."""
    channels = examples.input_shape[0]
    if channels != _COLOURS:
        raise ValueError(f"shift.{key}={value} with images of {channels} channel(s); allowed: 3")


def need_classes(option: str, examples: Examples) -> None:
    """Refuse data without class labels, or with a single class."""
    if examples.task != "classification":
        raise ValueError(f"shift={option} with task={examples.task}; allowed: task=classification")
    if examples.num_classes < 2:
        raise ValueError(f"shift={option} with 1 class; allowed: at least 2 classes")


def input_dtype(examples: Examples) -> torch.dtype:
    """Type of the inputs, in memory or on disk."""
    return examples.inputs[0].dtype


def _are_numbers(examples: Examples) -> bool:
    found = input_dtype(examples)
    return found == torch.uint8 or found.is_floating_point
