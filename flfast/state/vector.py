"""Uploads as vectors and as changes. Learned leaves and counts are kept apart.

Counts are leaves of integers, and the parts of an upload that `counted` names.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.state.tree import Tree, leaves, tree_map

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
    """Copies of the learned leaves [D] and the counts, float64 [I], in the order of the keys."""
    dtype = vector_sizes(upload, counted).dtype
    learned, counts = [torch.empty(0, dtype=dtype)], [torch.empty(0, dtype=torch.float64)]
    for leaf, is_learned in _leaves(upload, counted):
        part = learned if is_learned else counts
        part.append(leaf.flatten().to(part[0].dtype))
    return torch.cat(learned), torch.cat(counts)


def from_vectors(learned: Tensor, counts: Tensor, like: Tree, counted: Collection[str]) -> Tree:
    """Inverse of `to_vectors`; floating-point leaves have at least float32.

    Args:
        learned: [D].
        counts: float64 [I].
        like: gives shapes and dtypes; may consist of meta tensors.
        counted: names of the parts that are counts.
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


def with_change(
    upload: Tree,
    origin: Tree,
    counted: Collection[str],
    change: Callable[[Tensor], Tensor],
) -> Tree:
    """`origin + change(upload - origin)` for learned leaves; the others stay.

    Args:
        upload: any tree.
        origin: upload of a client that learned nothing. It is zero for leaves that it lacks or
            has in another shape.
        counted: names of the parts that are counts.
        change: function of a leaf's difference from the origin.
    """
    learned = {name: leaf for name, leaf in upload.items() if name not in counted}

    def changed(leaf: Tensor, start: Tensor | None) -> Tensor:
        return change(leaf) if start is None else start + change(leaf - start)

    return {**upload, **_map_learned(changed, learned, origin)}


def with_scaled_change(upload: Tree, origin: Tree, counted: Collection[str], share: float) -> Tree:
    """`origin + share * (upload - origin)` for learned leaves, in one pass; see `with_change`."""
    learned = {name: leaf for name, leaf in upload.items() if name not in counted}

    def scaled(leaf: Tensor, start: Tensor | None) -> Tensor:
        if start is None:
            return share * leaf
        return torch.lerp(start.to(leaf.dtype), leaf, share)

    return {**upload, **_map_learned(scaled, learned, origin)}


def change_of(upload: Tree, origin: Tree, counted: Collection[str]) -> Tree:
    """`upload - origin`, learned leaves only; see `with_change`."""
    return _differences({k: part for k, part in upload.items() if k not in counted}, origin)


def _differences(tree: Tree, origin: Tree) -> Tree:
    result: Tree = {}
    for name, leaf in tree.items():
        start = origin.get(name)
        if isinstance(leaf, dict):
            part = _differences(leaf, start if isinstance(start, dict) else {})
            result |= {name: part} if part else {}
        elif leaf.is_floating_point():
            fits = isinstance(start, Tensor) and start.shape == leaf.shape
            result[name] = leaf - start if fits else leaf
    return result


def with_learned(upload: Tree, origin: Tree, change: Tree) -> Tree:
    """`origin + change` for the leaves of a change; the upload's other leaves stay."""
    result = dict(upload)
    for name, leaf in change.items():
        start = origin.get(name)
        if isinstance(leaf, dict):
            part = start if isinstance(start, dict) else {}
            result[name] = with_learned(upload[name], part, leaf)
        else:
            fits = isinstance(start, Tensor) and start.shape == leaf.shape
            result[name] = (start + leaf if fits else leaf).to(upload[name].dtype)
    return result


def moved(upload: Tree, origin: Tree, target: Tree, scales: Mapping[str, float]) -> Tree:
    """`target + scale (upload - origin)` for learned leaves of the parts with a scale.

    Args:
        upload: any tree.
        origin: what it was changed from; see `with_change`.
        target: the same for what it shall be changed from.
        scales: by name of the part; the others stay.
    """
    result = dict(upload)
    for name, scale in scales.items():
        if name in upload:
            add = partial(_added, scale=scale)
            parts = ({name: tree[name]} if name in tree else {} for tree in (origin, target))
            result |= _map_learned(add, {name: upload[name]}, *parts)
    return result


def _added(leaf: Tensor, start: Tensor | None, end: Tensor | None, *, scale: float) -> Tensor:
    if start is None or end is None:
        return scale * leaf
    return torch.add(end, leaf - start, alpha=scale)


def _map_learned(fn: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """`fn(leaf, *others)` for learned leaves; None where others lack it or its shape."""
    result: Tree = {}
    for name, leaf in tree.items():
        found = [other.get(name) for other in others]
        if isinstance(leaf, dict):
            parts = (part if isinstance(part, dict) else {} for part in found)
            result[name] = _map_learned(fn, leaf, *parts)
        elif leaf.is_floating_point():
            same = (isinstance(x, Tensor) and x.shape == leaf.shape for x in found)
            values = [x if fits else None for x, fits in zip(found, same, strict=True)]
            result[name] = fn(leaf, *values).to(leaf.dtype)
        else:
            result[name] = leaf
    return result


def change_norm(upload: Tree, origin: Tree, counted: Collection[str]) -> float:
    """Euclidean norm of `upload - origin` over the learned leaves; see `with_change`."""
    # One pass that sums in double; squares of a copy in double take fifteen times as long.
    changes = leaves(change_of(upload, origin, counted))
    norms = [torch.linalg.vector_norm(change, dtype=torch.float64) for change in changes]
    return math.hypot(*map(float, norms))
