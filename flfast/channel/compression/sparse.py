"""How many elements of a change are sent, and random ones."""

import math

import numpy as np


def num_sent(share: float, size: int) -> int:
    """Elements of `size` to send, at least one if there are any.

    >>> num_sent(0.01, 1000), num_sent(0.3, 10), num_sent(0.01, 3), num_sent(0.5, 0)
    (10, 3, 1, 0)
    """
    # 0.3 * 10 is slightly more than 3 in floating point and must not round up to 4.
    return min(math.ceil(share * size * (1 - 1e-12)), size)


def random_indices(size: int, num: int, rng: np.random.Generator) -> np.ndarray:
    """Ascending indices of `num` elements of `size`, each set equally likely: int64 [num]."""
    if num == size:
        return np.arange(size)
    return np.sort(rng.choice(size, num, replace=False, shuffle=False))
