"""Random rounding to levels, and back: by our C++, or by torch to the same bits.

A vector lies in buckets of one scale each: `tiles.py`.
"""

import numpy as np
import torch
from torch import Tensor

from flfast.channel.compression.tiles import groups, tiles
from flfast.state.native.compiler import missing


def _is_native(dtype: torch.dtype) -> bool:
    return dtype == torch.float32 and missing() is None


def largest_magnitudes(vector: Tensor, sizes: tuple[int, ...], bucket: int | None) -> Tensor:
    """Largest magnitude of each bucket [num_buckets], in the dtype of the vector [D]."""
    nums, widths = groups(sizes, bucket)
    if _is_native(vector.dtype):
        largest: Tensor = torch.ops.flfast.largest_magnitudes(vector, nums, widths)
        return largest
    parts = vector.split([num * width for num, width in zip(nums, widths, strict=True)])
    found = [vector[:0]]
    for part, num, width in zip(parts, nums, widths, strict=True):
        rows = part.view(num, width)
        # Faster than amax of the magnitudes, which would be written to memory.
        found.append(torch.maximum(rows.amax(dim=1), -rows.amin(dim=1)))
    return torch.cat(found)


def round_randomly(
    vector: Tensor,
    factors: Tensor,
    half: float,
    seed: int,
    *,
    sizes: tuple[int, ...],
    bucket: int | None,
) -> np.ndarray:
    """The levels x * factor + half, rounded up or down at random, uint8 [D].

    The expectation of a level is exact to 2^-16, because a random number has 16 bits.

    Args:
        vector: x, [D]; its memory may be used.
        factors: of each bucket, in the dtype of the vector; products lie in -half to half.
        half: level of zero.
        seed: of the random numbers.
        sizes: elements of each leaf.
        bucket: elements of a bucket; None: each leaf is a bucket.
    """
    # SFC64 is faster than the run's Philox.
    random = np.random.SFC64(seed)
    # Random numbers lie in [-0.5, 0.5). All sums are positive: the cast rounds down.
    shift = half + 0.5 + 2.0**-17
    if _is_native(vector.dtype):
        state = torch.from_numpy(random.state["state"]["state"].view(np.int64))
        found: Tensor = torch.ops.flfast.round_randomly(
            vector, factors, state, shift, *groups(sizes, bucket)
        )
        return found.numpy()
    levels = np.empty(len(vector), np.uint8)
    noise = torch.from_numpy(random.random_raw(-(-len(vector) // 4)).view(np.int16))
    for tile in tiles(sizes, bucket):
        part = vector[tile.elements]
        part.view(tile.rows, -1).mul_(factors[tile.buckets, None])
        part.add_(noise[tile.elements], alpha=2.0**-16)
        part.add_(shift)
        np.copyto(levels[tile.elements], part.numpy(), casting="unsafe")
    return levels


def values_of_levels(
    levels: np.ndarray,
    scales: Tensor,
    half: float,
    step: float,
    *,
    sizes: tuple[int, ...],
    bucket: int | None,
) -> Tensor:
    """(level - half) * step * scale, [D] in the dtype of the scales.

    Args:
        levels: uint8 [D].
        scales: of each bucket.
        half: level of zero.
        step: 1 or 2; where scales are large, step * scale may overflow and the value does not.
        sizes: elements of each leaf.
        bucket: elements of a bucket; None: each leaf is a bucket.
    """
    if _is_native(scales.dtype):
        # Torch warns about read-only arrays, such as those of a message.
        writable = levels if levels.flags.writeable else levels.copy()
        found: Tensor = torch.ops.flfast.values_of_levels(
            torch.from_numpy(writable), scales, half, step, *groups(sizes, bucket)
        )
        return found
    vector = torch.empty(len(levels), dtype=scales.dtype)
    for tile in tiles(sizes, bucket):
        part = vector[tile.elements]
        np.copyto(part.numpy(), levels[tile.elements])
        part.sub_(half).mul_(step)
        part.view(tile.rows, -1).mul_(scales[tile.buckets, None])
    return vector
