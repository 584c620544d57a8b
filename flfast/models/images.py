"""What convolutional models share: a check of the input shape, and layers that normalise."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn

from flfast.state.image_shape import refuse_channels_last


def check_image(
    input_shape: tuple[int, ...], *, model: str, smallest: int = 1, remedy: str = ""
) -> tuple[int, int, int]:
    """The input shape as (channels, H, W), at least `smallest` pixels high and wide.

    Errors name the model with its relevant options, and another remedy for small images.

    Raises:
        ValueError: if the input is not an image, or too small.
    """
    if len(input_shape) != 3:
        grey = "x[:, None] in NumPy for grey images, or " if len(input_shape) == 2 else ""
        raise ValueError(
            f"{model} needs images [channels, H, W], the data have shape {list(input_shape)}; "
            f"use {grey}model=mlp or model=logistic"
        )
    refuse_channels_last(input_shape)
    channels, height, width = input_shape
    if min(height, width) < smallest:
        others = ", ".join(filter(None, [remedy, "model=mlp or model=logistic"]))
        raise ValueError(
            f"{model} needs images of at least {smallest}x{smallest}, "
            f"the data have {channels}x{height}x{width}; use {others}"
        )
    return channels, height, width


def norm_layer(
    norm: Literal["batch", "group", "none"], groups: int, narrowest: int = 64
) -> Callable[[int], nn.Module]:
    """(channels) -> a normalising layer; the narrowest one has 64 channels, or as many as given.

    Raises:
        ValueError: if `groups` of GroupNorm do not divide them.
    """
    if norm == "group" and narrowest % groups:
        raise ValueError(
            f"model.groups={groups} must divide {narrowest}, the channels of the narrowest layer"
        )
    layers: dict[str, Callable[[int], nn.Module]] = {
        "batch": nn.BatchNorm2d,
        "group": partial(nn.GroupNorm, groups),
        "none": nn.Identity,
    }
    return layers[norm]
