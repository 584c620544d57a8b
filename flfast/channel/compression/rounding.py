"""Random rounding to levels, and back: by our C++, or by torch to the same bits.

A vector of all leaves lies in buckets of one scale each.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flfast.state.native.compiler import missing


def _is_native(dtype: torch.dtype) -> bool:
    return dtype == torch.float32 and missing() is None


class Buckets(NamedTuple):
    """The buckets of a vector [D] of leaves.

    Attributes:
        sizes: elements of each leaf; empty leaves have no bucket.
        size: elements of a bucket, the last one may have fewer; None: each leaf is a bucket.
    """

    sizes: tuple[int, ...]
    size: int | None

    @property
    def num(self) -> int:
        """Number of buckets."""
        return sum(_groups(self)[0])

    def largest(self, vector: Tensor) -> Tensor:
        """Largest magnitude of each bucket [num], in the dtype of the vector [D]."""
        if _is_native(vector.dtype):
            largest: Tensor = torch.ops.flfast.largest_magnitudes(vector, *_groups(self))
            return largest
        widths = self._widths()
        return (
            torch.segment_reduce(vector.abs(), "max", lengths=widths) if self.num else vector[:0]
        )

    def rounded(self, vector: Tensor, factors: Tensor, half: float, seed: int) -> np.ndarray:
        """The levels x * factor + half, rounded up or down at random, uint8 [D].

        The expectation of a level is exact to 2^-16, because a random number has 16 bits.

        Args:
            vector: x, [D]; its memory may be used.
            factors: factors of each bucket, in the dtype of the vector; products lie in -half to
                half.
            half: level of zero.
            seed: seed of the random numbers.
        """
        # SFC64 is faster than the run's Philox.
        random = np.random.SFC64(seed)
        # Random numbers lie in [-0.5, 0.5). All sums are positive: the cast rounds down.
        shift = half + 0.5 + 2.0**-17
        if _is_native(vector.dtype):
            state = torch.from_numpy(random.state["state"]["state"].view(np.int64))
            args = vector, factors, state, shift
            found: Tensor = torch.ops.flfast.round_randomly(*args, *_groups(self))
            return found.numpy()
        noise = torch.from_numpy(random.random_raw(-(-len(vector) // 4)).view(np.int16))
        vector.mul_(factors.repeat_interleave(self._widths())).add_(
            noise[: len(vector)], alpha=2.0**-16
        ).add_(shift)
        return vector.numpy().astype(np.uint8)

    def values(self, levels: np.ndarray, scales: Tensor, half: float, step: float) -> Tensor:
        """(level - half) * step * scale, [D] in the dtype of the scales.

        Args:
            levels: uint8 [D].
            scales: scales of each bucket.
            half: level of zero.
            step: 1 or 2; where scales are large, step * scale may overflow and the value does not.
        """
        if _is_native(scales.dtype):
            # Torch warns about read-only arrays, such as those of a message.
            writable = levels if levels.flags.writeable else levels.copy()
            args = torch.from_numpy(writable), scales, half, step
            found: Tensor = torch.ops.flfast.values_of_levels(*args, *_groups(self))
            return found
        vector = torch.from_numpy(levels.astype(scales.numpy().dtype))
        return vector.sub_(half).mul_(step).mul_(scales.repeat_interleave(self._widths()))

    def _widths(self) -> Tensor:
        """Elements of each bucket, int64 [num]."""
        nums, widths = (torch.tensor(part, dtype=torch.int64) for part in _groups(self))
        return widths.repeat_interleave(nums)


@lru_cache(maxsize=64)
def _groups(buckets: Buckets) -> tuple[list[int], list[int]]:
    """Consecutive buckets of equal size: (number of them, elements of each), by group."""
    if buckets.size is None:
        filled = [size for size in buckets.sizes if size]
        return [1] * len(filled), filled
    full, rest = divmod(sum(buckets.sizes), buckets.size)
    found = [group for group in ((full, buckets.size), (1, rest)) if all(group)]
    return [num for num, _ in found], [width for _, width in found]
