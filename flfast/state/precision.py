"""The widest floating-point type of a device. Sums and small numbers of local training have it."""

import torch
from torch import Tensor

WITHOUT_FLOAT64 = {"mps"}
"""Types of devices that have no float64."""


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that lacks it.

    >>> widest_float(torch.device("cpu")), widest_float(torch.device("mps"))
    (torch.float64, torch.float32)
    """
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def widened(values: Tensor) -> Tensor:
    """Values in the widest floating-point type of their device."""
    return values.to(widest_float(values.device))


def placed(values: Tensor, device: torch.device, *, copy: bool = False) -> Tensor:
    """Values on a device; float64 becomes the widest type there."""
    dtype = widest_float(device) if values.dtype == torch.float64 else values.dtype
    return values.to(device, dtype, copy=copy)
