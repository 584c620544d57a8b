"""Uploads as vectors. Learned leaves and counts are kept apart.

Counts are leaves of integers, and the parts of an upload that `counted` names.
"""

import math
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.state.precision import widest_float
from flfast.state.tree import Tree, leaves, merge, tree_map

_MAX_COUNT = 2.0**31


class Sizes(NamedTuple):
    """Sizes of an upload's two vectors.

    Attributes:
        learned: D, elements of learned leaves.
        dtype: data type of the largest learned leaf, at least float32.
        counted: I, elements of counts.
    """

    learned: int
    dtype: torch.dtype
    counted: int


def vector_sizes(upload: Tree, counted: Collection[str]) -> Sizes:
    """Sizes of an upload's vectors; the upload may consist of meta tensors."""
    learned = [leaf for leaf, is_learned in _leaves(upload, counted) if is_learned]
    total = sum(leaf.numel() for leaf in leaves(upload))
    num = sum(leaf.numel() for leaf in learned)
    dtype = max(learned, key=Tensor.numel).dtype if learned else torch.float32
    return Sizes(num, torch.promote_types(dtype, torch.float32), total - num)


def to_vectors(upload: Tree, counted: Collection[str]) -> tuple[Tensor, Tensor]:
    """Copies of the learned leaves [D] and the counts, float64 [I], in the order of the keys.

    They are on the device of the upload.
    """
    dtype = vector_sizes(upload, counted).dtype
    device = next((leaf.device for leaf in leaves(upload)), torch.device("cpu"))
    learned = [torch.empty(0, dtype=dtype, device=device)]
    counts = [torch.empty(0, dtype=widest_float(device), device=device)]
    for leaf, is_learned in _leaves(upload, counted):
        part = learned if is_learned else counts
        part.append(leaf.flatten().to(part[0].dtype))
    return torch.cat(learned), torch.cat(counts)


def from_vectors(learned: Tensor, counts: Tensor, like: Tree, counted: Collection[str]) -> Tree:
    """Inverse of `to_vectors`, of [D] and [I]; floating-point leaves have at least float32.

    `like` gives shapes and dtypes, and may consist of meta tensors. `counted` are names of the
    parts that are counts.
    """
    ends = {True: 0, False: 0}
    flags = iter([is_learned for _, is_learned in _leaves(like, counted)])

    def take(leaf: Tensor) -> Tensor:
        is_learned = next(flags)
        start, ends[is_learned] = ends[is_learned], ends[is_learned] + leaf.numel()
        values = (learned if is_learned else counts)[start : ends[is_learned]].view(leaf.shape)
        real = leaf.is_floating_point()
        return values.to(torch.promote_types(leaf.dtype, torch.float32) if real else leaf.dtype)

    return tree_map(take, like)


def _leaves(upload: Tree, counted: Collection[str]) -> Iterator[tuple[Tensor, bool]]:
    """(leaf, whether it is learned) in the order of the keys."""
    for name, part in upload.items():
        for leaf in leaves({name: part}):
            yield leaf, name not in counted and leaf.is_floating_point()


def counts_in_range(upload: Tree, counted: Collection[str]) -> bool:
    """Whether all parts that are counts lie in [0, 2^31)."""
    parts = {name: part for name, part in upload.items() if name in counted}
    numbers = torch.cat(
        [torch.empty(0, dtype=torch.float64), *(x.flatten().double() for x in leaves(parts))]
    )
    return bool(((numbers >= 0) & (numbers < _MAX_COUNT)).all())


def learned(upload: Tree, counted: Collection[str]) -> Tree:
    """The learned leaves of an upload."""

    def of(tree: Tree) -> Tree:
        result: Tree = {}
        for name, leaf in tree.items():
            if isinstance(leaf, dict):
                part = of(leaf)
                result |= {name: part} if part else {}
            elif leaf.is_floating_point():
                result[name] = leaf
        return result

    return of({name: part for name, part in upload.items() if name not in counted})


def map_learned(fn: Callable[[Tensor], Tensor], upload: Tree, counted: Collection[str]) -> Tree:
    """The upload with `fn` applied to its learned leaves, whose data types stay."""
    changed = tree_map(lambda leaf: fn(leaf).to(leaf.dtype), learned(upload, counted))
    return merge(upload, changed)


def learned_norm(upload: Tree, counted: Collection[str]) -> float:
    """Euclidean norm over the learned leaves."""
    # One pass that sums in double; squares of a copy in double take fifteen times as long.
    found = leaves(learned(upload, counted))
    return math.hypot(*(float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in found))


def clipped(upload: Tree, counted: Collection[str], limit: float) -> tuple[Tree, bool]:
    """The upload with its learned leaves scaled down to a norm, and whether it was longer."""
    norm = learned_norm(upload, counted)
    if norm <= limit:
        return upload, False
    return map_learned(lambda leaf: limit / norm * leaf, upload, counted), True
