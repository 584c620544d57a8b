"""Copies between CPU and GPU with as few synchronizations as possible."""

import numpy as np
import torch
from torch import Tensor

from flfast.state.tree import Tree, leaves, tree_map


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device, asynchronously if that is a GPU."""
    tensor = torch.from_numpy(values)
    if device.type != "cuda":
        return tensor.to(device)
    # Only copies from pinned memory are asynchronous; torch keeps it until the copy is done.
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tree: Tree) -> Tree:
    """The tree on the CPU, with one synchronization per GPU. Leaves on the CPU are not copied."""
    gpus = {leaf.device for leaf in leaves(tree) if leaf.is_cuda}
    host = tree_map(lambda leaf: leaf.to("cpu", non_blocking=leaf.is_cuda), tree)
    for gpu in gpus:
        torch.cuda.current_stream(gpu).synchronize()
    return host
