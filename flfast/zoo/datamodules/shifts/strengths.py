"""How strongly each client is shifted, and further checks that data fit a shift."""

from typing import Literal

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.shifts.demands import are_numbers, input_dtype, need_images
from flfast.state.randomness import uniforms

_COLOURS = 3

Levels = Literal["equal", "linear", "random"]
"""How strongly clients are shifted: all fully, rising with their number, or each at random."""


def strengths(clients: np.ndarray, levels: Levels, *, seed: int) -> np.ndarray:
    """Share of the full strength that each client has, float64 [K] in [0, 1].

    `linear` is 0 for the first client and 1 for the last one.
    """
    if levels == "random":
        return uniforms(seed, "shift strength", clients)
    if levels == "linear":
        return clients / max(len(clients) - 1, 1)
    return np.ones(len(clients))


def need_bytes(option: str, examples: Examples) -> None:
    """Refuse images whose pixels are not bytes, so that their range is not known."""
    need_images(option, examples)
    found = input_dtype(examples)
    if found != torch.uint8:
        raise ValueError(f"shift={option} with inputs of type {found}; allowed: torch.uint8")


def need_numbers(option: str, examples: Examples) -> None:
    """Refuse inputs such as tokens, which are neither bytes nor floating-point numbers."""
    if not are_numbers(examples):
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
