"""Shamir's secret sharing: any t of n shares give the secret, t - 1 say nothing about it.

Shamir: How to Share a Secret. Communications of the ACM 22(11), 1979.

A secret is cut into words of 16 bits. Each is the value at 0 of its own random polynomial of
degree t - 1 over the integers modulo 65537. Such small numbers are added exactly in float64, so
that all shares are one matrix product.
"""

from collections.abc import Sequence

import numpy as np

PRIME = 65537
SECRET_BYTES = 32
_WORDS = SECRET_BYTES // 2
_SHARE_BITS = 17  # of a number below 65537
SHARE_BYTES = _WORDS * _SHARE_BITS // 8
RANDOM_BYTES = _WORDS * 8
"""Random bytes for each coefficient but the first, for a whole secret."""


def split(secret: bytes, threshold: int, points: Sequence[int], random: bytes) -> list[bytes]:
    """A share of the secret for each point.

    Args:
        secret: 32 bytes.
        threshold: t, the number of shares that give the secret, in [1, n].
        points: n different numbers in [1, 65536], one per holder.
        random: (t - 1) * `RANDOM_BYTES` random bytes.
    """
    drawn = np.frombuffer(random, np.uint64).reshape(threshold - 1, _WORDS)
    # 64 random bits modulo the prime are uniform up to 2^-47.
    rest = (drawn % np.uint64(PRIME)).astype(np.float64)
    words = np.frombuffer(secret, np.uint16).astype(np.float64)
    coefficients = np.concatenate([words[None], rest])  # [t, words]
    powers = np.ones((len(points), threshold))
    at = np.asarray(points, dtype=np.float64)
    for degree in range(1, threshold):
        powers[:, degree] = powers[:, degree - 1] * at % PRIME
    shares = (powers @ coefficients % PRIME).astype(np.uint32)
    return [_packed(share) for share in shares]


def combine(points: Sequence[int], shares: Sequence[bytes]) -> bytes:
    """The secret of at least t shares of `split`, by their points; fewer give a wrong one.

    Raises:
        ValueError: if the shares cannot be those of one secret.
    """
    weights = np.array([_weight(point, points) for point in points], dtype=np.float64)
    values = np.stack([_unpacked(share) for share in shares]).astype(np.float64)
    words = weights @ values % PRIME
    if words.max() > 65535:
        raise ValueError("the shares belong to no secret of 16-bit words")
    return words.astype(np.uint16).tobytes()


def _weight(point: int, points: Sequence[int]) -> int:
    """Value at 0 of the Lagrange polynomial of a point."""
    above, below = 1, 1
    for other in points:
        if other != point:
            above, below = above * other % PRIME, below * (other - point) % PRIME
    return above * pow(below, -1, PRIME) % PRIME


def _packed(share: np.ndarray) -> bytes:
    bits = share[:, None] >> np.arange(_SHARE_BITS, dtype=np.uint32) & np.uint32(1)
    return np.packbits(bits.astype(np.uint8)).tobytes()


def _unpacked(share: bytes) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(share, np.uint8)).reshape(_WORDS, _SHARE_BITS)
    return bits.astype(np.uint32) @ (np.uint32(1) << np.arange(_SHARE_BITS, dtype=np.uint32))
