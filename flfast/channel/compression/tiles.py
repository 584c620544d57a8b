"""A vector of all leaves in buckets, cut into tiles that stay in a core's cache."""

from functools import lru_cache
from typing import NamedTuple

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


@lru_cache(maxsize=64)
def groups(sizes: tuple[int, ...], bucket: int | None) -> tuple[list[int], list[int]]:
    """Consecutive buckets of equal size: (number of them, elements of each), by group.

    Args:
        sizes: elements of each leaf; empty leaves have no bucket.
        bucket: elements of a bucket, the last one may have fewer; None: each leaf is a bucket.
    """
    if bucket is None:
        filled = [size for size in sizes if size]
        return [1] * len(filled), filled
    full, rest = divmod(sum(sizes), bucket)
    found = [group for group in ((full, bucket), (1, rest)) if all(group)]
    return [num for num, _ in found], [width for _, width in found]


def num_buckets(sizes: tuple[int, ...], bucket: int | None) -> int:
    """Number of buckets; see `groups`."""
    return sum(groups(sizes, bucket)[0])


@lru_cache(maxsize=64)
def tiles(sizes: tuple[int, ...], bucket: int | None) -> tuple[Tile, ...]:
    """Tiles that cover a vector; see `groups`."""
    found: list[Tile] = []
    start = first = 0
    for num, width in zip(*groups(sizes, bucket), strict=True):
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
