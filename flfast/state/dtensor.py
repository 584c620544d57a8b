"""Sharded tensors: every rank holds its part of dimension 0, as torch's FSDP2 cuts it."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from flfast.state.tree import Tree


def shard_like(value: Tensor, like: DTensor) -> DTensor:
    """This rank's part of a tensor that all ranks have whole; no communication.

    Args:
        value: of the shape of `like`.
        like: says ranks, device and cut.
    """
    mesh = like.device_mesh
    parts = value.chunk(mesh.size())  # fewer than ranks where dimension 0 is short
    rank = mesh.get_local_rank()
    part = parts[rank] if rank < len(parts) else value[:0]
    return DTensor.from_local(
        part.to(like.device),
        mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def whole(tensor: Tensor) -> Tensor:
    """A copy of all of a tensor, on the CPU; collective where it is sharded."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        return tensor.full_tensor().cpu()
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)


def place_tree(
    tree: Tree,
    params: Mapping[str, Tensor],
    device: torch.device,
    like: Tensor | None = None,
) -> Tree:
    """The tree on a device; leaves of a sharded parameter sharded alike, the others whole.

    A leaf belongs to a parameter if it, or a dict around it, has its name, and it has its shape.

    Args:
        tree: weights, or anything else by parameter name.
        params: by name.
        device: of the parameters.
        like: the parameter that the whole tree belongs to.
    """
    placed: Tree = {}
    for name, leaf in tree.items():
        own = params.get(name, like)
        if isinstance(leaf, dict):
            placed[name] = place_tree(leaf, params, device, own)
        elif isinstance(own, DTensor) and leaf.shape == own.shape:
            placed[name] = shard_like(leaf, own)
        else:
            placed[name] = leaf.to(device)
    return placed
