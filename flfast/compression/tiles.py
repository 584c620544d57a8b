"""A vector of all leaves in buckets, cut into tiles that stay in a core's cache."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

_TILE = 2**16


class Tile(NamedTuple):
    """Consecutive elements of the vector, all of the same bucket or of whole buckets.

    Attributes:
        elements: of the vector.
        buckets: that the elements belong to, one for each row.
        rows: buckets of equal size in this tile, or 1.
    """

    elements: slice
    buckets: slice
    rows: int


def num_buckets(sizes: tuple[int, ...], bucket: int | None) -> int:
    """Number of buckets; see `tiles`."""
    if bucket is None:
        return sum(size > 0 for size in sizes)
    return -(-sum(sizes) // bucket)


@lru_cache(maxsize=64)
def tiles(sizes: tuple[int, ...], bucket: int | None) -> tuple[Tile, ...]:
    """Tiles that cover a vector.

    Args:
        sizes: elements of each leaf; empty leaves have no bucket.
        bucket: elements of a bucket, the last one may have fewer; None: each leaf is a bucket.
    """
    found: list[Tile] = []
    start = first = 0
    for num, width in _groups(sizes, bucket):
        step = max(_TILE // width, 1)
        for row in range(0, num, step):
            rows = min(step, num - row)
            buckets = slice(first + row, first + row + rows)
            end = start + rows * width
            found += [
                Tile(slice(begin, min(begin + _TILE, end)), buckets, rows)
                for begin in range(start, end, _TILE)
            ]
            start = end
        first += num
    return tuple(found)


def _groups(sizes: tuple[int, ...], bucket: int | None) -> list[tuple[int, int]]:
    """Consecutive buckets of equal size: (number, elements of each)."""
    if bucket is None:
        return [(1, size) for size in sizes if size]
    full, rest = divmod(sum(sizes), bucket)
    return [group for group in ((full, bucket), (1, rest)) if all(group)]


def largest_magnitudes(vector: Tensor, sizes: tuple[int, ...], bucket: int | None) -> Tensor:
    """Largest magnitude of each bucket [num_buckets], in the dtype of the vector [D]."""
    groups = _groups(sizes, bucket)
    parts = vector.split([num * width for num, width in groups])
    found = []
    for part, (num, width) in zip(parts, groups, strict=True):
        rows = part.view(num, width)
        # Faster than amax of the magnitudes, which would be written to memory.
        found.append(torch.maximum(rows.amax(dim=1), -rows.amin(dim=1)))
    return torch.cat([vector[:0], *found])
