"""All leaves of a change as one vector, and vectors as bytes."""

from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flfast.state.tree import Tree, from_parts, leaves, tree_map


class VectorLayout(NamedTuple):
    """How the leaves of a change lie in one vector.

    Attributes:
        sizes: elements of each leaf, in the order of the keys.
        size: D, elements of all leaves.
        wire: dtype in which values are sent: the smallest that holds every leaf.
        work: dtype to compute in: the wire's, but at least float32.
    """

    sizes: tuple[int, ...]
    size: int
    wire: torch.dtype
    work: torch.dtype


def layout_of(like: Tree) -> VectorLayout:
    """The layout of a change, which may consist of meta tensors."""
    found = list(leaves(like))
    dtypes = {leaf.dtype for leaf in found}
    wire = reduce(torch.promote_types, dtypes) if dtypes else torch.float32
    sizes = tuple(leaf.numel() for leaf in found)
    return VectorLayout(sizes, sum(sizes), wire, torch.promote_types(wire, torch.float32))


def flatten(change: Tree, dtype: torch.dtype) -> Tensor:
    """A copy of all leaves as one vector [D], in the order of the keys."""
    parts = [leaf.detach().reshape(-1) for leaf in leaves(change)]
    # One output of the right dtype: the conversion is part of the copy.
    vector = torch.empty(sum(part.numel() for part in parts), dtype=dtype)
    return torch.cat(parts, out=vector) if parts else vector


def unflatten(vector: Tensor, like: Tree) -> Tree:
    """Inverse of `flatten`; leaves are views of the vector where their dtype is the vector's.

    `like` gives shapes and dtypes, and may consist of meta tensors.
    """
    parts = from_parts(vector.split([leaf.numel() for leaf in leaves(like)]), like)
    return tree_map(lambda part, leaf: part.to(leaf.dtype), parts, like)


def to_bytes(vector: Tensor) -> bytes:
    """The elements of a contiguous vector, in the machine's byte order."""
    return vector.view(torch.uint8).numpy().tobytes()


def from_bytes(message: bytes, dtype: torch.dtype, num: int) -> Tensor:
    """The first `num` elements, as a writable vector [num]."""
    vector = torch.empty(num, dtype=dtype)
    raw = np.frombuffer(message, np.uint8, num * dtype.itemsize)
    vector.view(torch.uint8).numpy()[:] = raw
    return vector
