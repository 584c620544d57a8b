"""Which elements of a change are sent: the largest, or random ones."""

import math

import numpy as np


def num_sent(share: float, size: int) -> int:
    """Elements of `size` to send, at least one if there are any.

    >>> num_sent(0.01, 1000), num_sent(0.3, 10), num_sent(0.01, 3), num_sent(0.5, 0)
    (10, 3, 1, 0)
    """
    # 0.3 * 10 is slightly more than 3 in floating point and must not round up to 4.
    return min(math.ceil(share * size * (1 - 1e-12)), size)


def largest(vector: np.ndarray, num: int) -> np.ndarray:
    """Ascending indices of the elements of largest magnitude; of equal ones the first.

    Args:
        vector: [D], finite.
        num: k, from 0 to D.

    Returns:
        int64 [k].
    """
    size = len(vector)
    if num in {0, size}:
        return np.arange(num)
    magnitudes = np.abs(vector)
    threshold = np.partition(magnitudes, size - num)[size - num]
    chosen = np.flatnonzero(magnitudes >= threshold)
    surplus = len(chosen) - num
    if surplus:
        ties = np.flatnonzero(magnitudes[chosen] == threshold)
        chosen = np.delete(chosen, ties[-surplus:])
    return chosen


def random_indices(size: int, num: int, rng: np.random.Generator) -> np.ndarray:
    """Ascending indices of `num` elements of `size`, each set equally likely: int64 [num]."""
    if num == size:
        return np.arange(size)
    return np.sort(rng.choice(size, num, replace=False, shuffle=False))
