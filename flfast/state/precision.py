"""Copies to devices, and the widest floating-point type of each.

Sums and small numbers of local training have that type.
"""

import numpy as np
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


def has_room(num_bytes: int, device: torch.device) -> bool:
    """Whether so many bytes are less than half of a device's free memory, if it tells that."""
    free_memory = getattr(torch.get_device_module(device), "mem_get_info", None)
    return free_memory is None or num_bytes < free_memory(device)[0] / 2


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device, asynchronously if that is a GPU."""
    tensor = torch.from_numpy(values)
    if device.type != "cuda":
        return tensor.to(device)
    # Only copies from pinned memory are asynchronous; torch keeps it until the copy is done.
    return tensor.pin_memory().to(device, non_blocking=True)
