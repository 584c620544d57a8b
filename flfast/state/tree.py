"""Trees: nested dicts whose leaves are tensors. Every function returns a new tree.

`WeightedMean` adds trees up as they come.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from flfast.state.near_ties import nearest_whole
from flfast.state.precision import widest_float

Tree = dict[str, Any]


def tree_map(fn: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """Apply `fn` to the leaves at the same position of every tree.

    >>> tree_map(torch.add, {"w": torch.ones(2)}, {"w": torch.ones(2)})
    {'w': tensor([2., 2.])}
    """
    return {
        name: tree_map(fn, leaf, *(other[name] for other in others))
        if isinstance(leaf, dict)
        else fn(leaf, *(other[name] for other in others))
        for name, leaf in tree.items()
    }


def leaves(tree: Tree) -> Iterator[Tensor]:
    """All tensors, in the order of the keys."""
    for leaf in tree.values():
        if isinstance(leaf, dict):
            yield from leaves(leaf)
        else:
            yield leaf


def named_leaves(
    tree: Tree, *, separator: str = ".", prefix: str = ""
) -> Iterator[tuple[str, Tensor]]:
    """(path behind a prefix, leaf) of all leaves, in the order of `leaves`."""
    for name, leaf in tree.items():
        path = f"{prefix}{name}"
        if isinstance(leaf, dict):
            yield from named_leaves(leaf, separator=separator, prefix=f"{path}{separator}")
        else:
            yield path, leaf


def leaf_names(tree: Tree) -> list[str]:
    """The dotted names of all leaves, in the order of `leaves`."""
    return [name for name, _ in named_leaves(tree)]


def same_names(tree: Tree, other: Tree) -> bool:
    """Whether two trees have leaves of the same names.

    >>> same_names({"a": {"w": torch.ones(2)}}, {"a": {"w": torch.ones(3)}})
    True
    """
    return tree is other or (
        tree.keys() == other.keys()
        and all(
            isinstance(leaf, dict) == isinstance(other[name], dict)
            and (not isinstance(leaf, dict) or same_names(leaf, other[name]))
            for name, leaf in tree.items()
        )
    )


def float_type(tree: Tree) -> torch.dtype:
    """Data type of the first floating-point leaf; torch's default if there is none.

    >>> float_type({"indices": torch.ones(2, dtype=torch.int64), "w": torch.ones(2).double()})
    torch.float64
    """
    types = (leaf.dtype for leaf in leaves(tree) if leaf.is_floating_point())
    return next(types, torch.get_default_dtype())


def sub(left: Tree, right: Tree) -> Tree:
    """`left - right`, leaf by leaf; of booleans -1, 0 or 1."""
    return tree_map(_difference, left, right)


def _difference(left: Tensor, right: Tensor) -> Tensor:
    return left.to(torch.int8) - right.to(torch.int8) if left.dtype == torch.bool else left - right


def add(tree: Tree, change: Tree) -> Tree:
    """The tree with a change added at the positions of the change; it is zero before.

    >>> add({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 10}, "c": 5})
    {'a': {'x': 1, 'y': 12}, 'b': 3, 'c': 5}
    """

    def added(name: str, leaf: Any) -> Any:
        if name not in tree:
            return leaf
        if isinstance(leaf, dict):
            return add(tree[name], leaf)
        # Of booleans, which may be numbers in examples.
        is_bool = getattr(tree[name], "dtype", None) == torch.bool
        return tree[name] + leaf > 0 if is_bool else tree[name] + leaf

    return {**tree, **{name: added(name, leaf) for name, leaf in change.items()}}


def scaled(tree: Tree, factor: float) -> Tree:
    """`factor * tree`, leaf by leaf."""
    return tree_map(lambda leaf: factor * leaf, tree)


def move(start: Tree, end: Tree, weight: float) -> Tree:
    """`start + weight * (end - start)`, leaf by leaf."""
    return tree_map(lambda a, b: a + weight * (b - a), start, end)


def zeros(tree: Tree) -> Tree:
    """Zeros of the tree's shapes and types."""
    return tree_map(torch.zeros_like, tree)


def dot(left: Tree, right: Tree) -> Tensor:
    """Sum of products over the leaves of `left`, shape []."""
    return cast(Tensor, sum(leaf.sum() for leaf in leaves(tree_map(torch.mul, left, right))))


def squared_norm(tree: Tree) -> Tensor:
    """Sum of squares over all leaves, shape []."""
    return cast(Tensor, sum(leaf.square().sum() for leaf in leaves(tree)))


def merge(left: Tree, right: Tree) -> Tree:
    """Recursive dict update: the leaves of `right` replace or extend those of `left`.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    merged = dict(left)
    for name, leaf in right.items():
        both = isinstance(leaf, dict) and isinstance(left.get(name), dict)
        merged[name] = merge(left[name], leaf) if both else leaf
    return merged


def part_of(tree: Tree, like: Tree) -> Tree:
    """The leaves of `tree` at the positions of `like`, which must exist in `tree`.

    >>> part_of({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 0}})
    {'a': {'y': 2}}
    """
    return {
        name: part_of(tree[name], leaf) if isinstance(leaf, dict) else tree[name]
        for name, leaf in like.items()
    }


def without(tree: Tree, like: Tree) -> Tree:
    """The leaves of `tree` at positions that `like` lacks; dicts that become empty stay.

    >>> without({"a": {"x": 1, "y": 2}, "b": {"x": 3}}, {"a": {"y": 0}, "b": {"x": 0}})
    {'a': {'x': 1}, 'b': {}}
    """
    return {
        name: without(leaf, like.get(name, {})) if isinstance(leaf, dict) else leaf
        for name, leaf in tree.items()
        if isinstance(leaf, dict) or name not in like
    }


def to_host(tree: Tree) -> Tree:
    """The tree on the CPU, with one copy per device. Leaves on the CPU are not copied."""
    away = [leaf for leaf in leaves(tree) if leaf.device.type not in {"cpu", "meta"}]
    found = {id(leaf): leaf for leaf in leaves(tree)}
    for device in {leaf.device for leaf in away}:
        there = [leaf for leaf in away if leaf.device == device]
        # The widest types come first, so that every leaf begins at a multiple of its width.
        there.sort(key=Tensor.element_size, reverse=True)
        packed = torch.cat([leaf.reshape(-1).view(torch.uint8) for leaf in there])
        host = packed.to("cpu", non_blocking=packed.is_cuda)  # into pinned memory
        if packed.is_cuda:
            torch.cuda.current_stream(device).synchronize()
        parts = host.split([leaf.nbytes for leaf in there])
        for leaf, part in zip(there, parts, strict=True):
            found[id(leaf)] = part.view(leaf.dtype).view(leaf.shape)
    return tree_map(lambda leaf: found[id(leaf)], tree)


def num_bytes(tree: Tree) -> int:
    """Bytes of all leaves, uncompressed."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def all_finite(tree: Tree) -> bool:
    """Whether no leaf holds NaN or infinity."""
    return all(_is_finite(leaf) for leaf in leaves(tree) if leaf.is_floating_point())


def _is_finite(leaf: Tensor) -> bool:
    # The sum needs no mask in memory. It may overflow, so an infinite sum is checked by element.
    total = leaf.sum() if leaf.element_size() >= 4 else leaf.sum(dtype=torch.float32)
    return math.isfinite(total) or bool(leaf.isfinite().all())


def joined(tree: Any, *others: Any, stack: Callable[[list[Any]], Any] = torch.stack) -> Any:
    """One tree of several: leaves that all of them share stay, others are stacked, [S, ...]."""
    if all(other is tree for other in others):
        return tree
    if not isinstance(tree, dict):
        return stack([tree, *others])
    return {
        name: joined(leaf, *(other[name] for other in others), stack=stack)
        for name, leaf in tree.items()
    }


def from_parts(parts: Iterable[Tensor], like: Tree) -> Tree:
    """The tree whose leaves are flat parts, in the order of `leaves`, in the shapes of `like`."""
    left = iter(parts)
    return tree_map(lambda leaf: next(left).view(leaf.shape), like)


class WeightedMean:
    """Streaming weighted mean of trees, in the memory of one tree.

    Leaves are summed where the first tree has them, floating-point ones in at least float32.
    Integer leaves (BatchNorm's step counter) are summed in the widest type, and their mean is
    rounded to their own.

    Attributes:
        weight: sum of the weights.
        total: weighted sum; None before the first tree.
        like: a tree of meta tensors like those that are added; empty before the first.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self.total: Tree | None = None
        self.like: Tree = {}
        self._flat: Tensor | None = None

    def add(self, tree: Tree, weight: float) -> None:
        """Add `tree`; weights need not sum to one."""
        if self.total is None:
            self.start_at_zero(tree)
        assert self.total is not None
        pairs = zip(leaves(self.total), leaves(part_of(tree, self.total)), strict=True)
        added = [(total, x if x.dtype == total.dtype else x.to(total.dtype)) for total, x in pairs]
        if added:  # one call for all leaves: small models have more calls than arithmetic
            torch._foreach_add_(*map(list, zip(*added, strict=True)), alpha=weight)
        self.weight += weight

    def add_change(self, start: Tree, end: Tree, weight: float) -> None:
        """Add `end - start` in the memory of one leaf; all leaves are floating-point."""
        if self.total is None:
            self.start_at_zero(end)
        assert self.total is not None
        parts = self.total, part_of(end, self.total), part_of(start, self.total)
        for total, new, old in zip(*map(leaves, parts), strict=True):
            total.add_(new - old, alpha=weight)
        self.weight += weight

    def add_rows(self, rows: Sequence[Tensor], like: Tree, weights: Sequence[float]) -> None:
        """Add trees one after another, each a row [D] of its leaves: one call for each.

        All leaves of `like`, which gives their shapes, have the type of the rows, in which they
        are summed.
        """
        sizes = [leaf.numel() for leaf in leaves(like)]
        if self.total is None:
            # Not views of the rows, which would keep all of them in memory.
            self.like = tree_map(lambda leaf: leaf.to("meta"), like)
            self._flat = torch.zeros_like(rows[0])
            self.total = from_parts(self._flat.split(sizes), like)
        for row, weight in zip(rows, weights, strict=True):
            if self._flat is None:
                self.add(from_parts(row.split(sizes), like), weight)
            else:
                self._flat.add_(row, alpha=weight)
                self.weight += weight

    def start_at_zero(self, like: Tree) -> None:
        """Start the sum at zero with the shapes of `like`, which may consist of meta tensors."""
        self.total = tree_map(_zero_sum, like)
        self.like = tree_map(lambda leaf: leaf.to("meta"), like)  # a view would keep the rest

    def result(self) -> Tree:
        """The mean of the trees added so far, in the memory of their sum, which ends with it.

        Raises:
            ValueError: if the sum of weights is zero.
        """
        if self.total is None or not self.weight:
            raise ValueError("no upload to average: the sum of weights is 0")
        total, self.total = self.total, None
        return tree_map(self._mean, total, self.like)

    def _mean(self, total: Tensor, like: Tensor) -> Tensor:
        # In place, but not in views of a flat sum, which would keep and write all of it.
        mean = total.div_(self.weight) if self._flat is None else total / self.weight
        # The mean of bfloat16 uploads stays float32: rounding would lose what averaging gained.
        return mean if like.is_floating_point() else nearest_whole(mean).to(like.dtype)


def _zero_sum(like: Tensor) -> Tensor:
    device = torch.device("cpu") if like.is_meta else like.device
    least = torch.float32 if like.is_floating_point() else widest_float(device)
    return torch.zeros(like.shape, dtype=torch.promote_types(like.dtype, least), device=device)
