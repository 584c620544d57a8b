"""Between CPU and GPU, without waiting for the GPU more often than needed."""

import numpy as np
import torch
from torch import Tensor

from flfast.state.tree import Tree, leaves, tree_map


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """An array on a device; the CPU does not wait for what runs there."""
    found = torch.from_numpy(values)
    # Only from pinned memory, which torch keeps until it was read, is a copy done by itself.
    return found.pin_memory().to(device, non_blocking=True) if _waits(device) else found.to(device)


def to_host(tree: Tree) -> Tree:
    """A tree on the CPU, leaves that are there as they are; waits once for a GPU."""
    devices = {leaf.device for leaf in leaves(tree) if _waits(leaf.device)}
    found = tree_map(lambda leaf: leaf.to("cpu", non_blocking=_waits(leaf.device)), tree)
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return found


def _waits(device: torch.device) -> bool:
    return device.type == "cuda"
