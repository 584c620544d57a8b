"""Trees as vectors, and what an upload changes."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.state.tree import Tree, leaves, tree_map


class Sizes(NamedTuple):
    """What a tree takes as vectors.

    Attributes:
        floats: numbers in floating-point leaves, D.
        dtype: the type of the largest of these leaves, at least float32.
        others: numbers in all other leaves, such as counters, I.
    """

    floats: int
    dtype: torch.dtype
    others: int


def vector_sizes(tree: Tree) -> Sizes:
    """Sizes of a tree's vectors; its leaves may hold no values."""
    floats = [leaf for leaf in leaves(tree) if leaf.is_floating_point()]
    total = sum(leaf.numel() for leaf in leaves(tree))
    num = sum(leaf.numel() for leaf in floats)
    dtype = max(floats, key=Tensor.numel).dtype if floats else torch.float32
    return Sizes(num, torch.promote_types(dtype, torch.float32), total - num)


def to_vectors(tree: Tree) -> tuple[Tensor, Tensor]:
    """Copies of floating-point leaves [D] and of others, int64 [I], in the keys' order."""
    dtype = vector_sizes(tree).dtype
    floats, others = [torch.empty(0, dtype=dtype)], [torch.empty(0, dtype=torch.int64)]
    for leaf in leaves(tree):
        part = floats if leaf.is_floating_point() else others
        part.append(leaf.flatten().to(part[0].dtype))
    return torch.cat(floats), torch.cat(others)


def from_vectors(floats: Tensor, others: Tensor, like: Tree) -> Tree:
    """The inverse of `to_vectors`; floating-point leaves come back in at least float32.

    Args:
        floats: [D].
        others: int64 [I].
        like: shapes and types; may hold no values.
    """
    ends = {True: 0, False: 0}

    def take(leaf: Tensor) -> Tensor:
        real = leaf.is_floating_point()
        start, ends[real] = ends[real], ends[real] + leaf.numel()
        values = (floats if real else others)[start : ends[real]].view(leaf.shape)
        return values.to(torch.promote_types(leaf.dtype, torch.float32) if real else leaf.dtype)

    return tree_map(take, like)


def with_change(upload: Tree, origin: Tree, change: Callable[[Tensor], Tensor]) -> Tree:
    """`origin + change(upload - origin)` for floating-point leaves; all others as they are.

    Args:
        upload: any tree.
        origin: where the upload started from; leaves that it lacks, or has in another shape,
            started from zero.
        change: of a leaf.
    """
    changed: Tree = {}
    for name, leaf in upload.items():
        start = origin.get(name)
        if isinstance(leaf, dict):
            changed[name] = with_change(leaf, start if isinstance(start, dict) else {}, change)
        elif not leaf.is_floating_point():
            changed[name] = leaf
        elif isinstance(start, Tensor) and start.shape == leaf.shape:
            changed[name] = start + change(leaf - start)
        else:
            changed[name] = change(leaf)
    return changed


def change_norm(upload: Tree, origin: Tree) -> float:
    """Euclidean norm of `upload - origin` over floating-point leaves, as in `with_change`."""
    squares: list[Tensor] = []

    def measure(change: Tensor) -> Tensor:
        squares.append(change.double().square().sum())
        return change

    with_change(upload, origin, measure)
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0
