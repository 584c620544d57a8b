"""Sharded tensors as in torch's FSDP2: every rank holds a chunk of dimension 0."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from flfast.state.precision import placed
from flfast.state.tree import Tree


def shard_like(value: Tensor, like: DTensor) -> DTensor:
    """Shard a tensor that every rank holds in full as `like` is; without communication."""
    mesh = like.device_mesh
    chunks = value.chunk(mesh.size())  # fewer than ranks if dimension 0 is short
    rank = mesh.get_local_rank()
    chunk = (chunks[rank] if rank < len(chunks) else value[:0]).to(like.device)
    return DTensor.from_local(
        chunk, mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def full_copy(tensor: Tensor) -> Tensor:
    """Full copy of a tensor on the CPU; gathering a sharded one is collective."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        return tensor.full_tensor().cpu()
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)


def place_tree(
    tree: Tree, params: Mapping[str, Tensor], device: torch.device, like: Tensor | None = None
) -> Tree:
    """Move a tree to a device, and shard the leaves that belong to sharded parameters alike.

    A leaf belongs to the parameter that has its shape, and its name or that of an outer dict,
    whose parameter is `like`.
    """
    found: Tree = {}
    for name, leaf in tree.items():
        param = params.get(name, like)
        if isinstance(leaf, dict):
            found[name] = place_tree(leaf, params, device, param)
        elif isinstance(param, DTensor) and leaf.shape == param.shape:
            found[name] = shard_like(leaf, param)
        else:
            found[name] = placed(leaf, device)
    return found
