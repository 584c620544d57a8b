"""Real numbers as integers modulo 2^bits, whose sum over a cohort does not overflow."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True)
class FixedPoint:
    """Numbers in [-limit, limit] as multiples of 2^-exponent, rounded to nearest.

    Rounding to nearest suffices. Stochastic rounding would make the error of each number zero in
    expectation, which matters if the step is coarse; `masks` refuses coarse steps.

    Attributes:
        bits: bits of the modulus, at most 62.
        limit: largest absolute value.
        exponent: exponent of the step between two neighbouring numbers, 2^-exponent.
    """

    bits: int
    limit: float
    exponent: int

    @property
    def step(self) -> float:
        """Distance of two neighbouring numbers; the rounding error is at most half of it."""
        return math.ldexp(1.0, -self.exponent)

    def encode(self, values: np.ndarray) -> tuple[np.ndarray, int]:
        """Integers in (-2^(bits - 1), 2^(bits - 1)) of float64 [D], and how many were clamped.

        Raises:
            ValueError: if one is NaN or infinite.
        """
        largest = max(-values.min(initial=0.0), values.max(initial=0.0))
        if not math.isfinite(largest):
            raise ValueError("a value to mask is NaN or infinite")
        scaled, clamped = values * math.ldexp(1.0, self.exponent), 0
        if largest > self.limit:
            clamped = int(np.count_nonzero(np.abs(values) > self.limit))
            bound = math.ldexp(self.limit, self.exponent)
            np.clip(scaled, -bound, bound, out=scaled)
        return np.rint(scaled, out=scaled).astype(np.int64), clamped

    def decode(self, totals: np.ndarray) -> np.ndarray:
        """Real numbers of sums modulo 2^bits, uint64 [D] -> float64 [D]; ignores higher bits."""
        # A shift to the top and an arithmetic shift back extend the sign.
        shift = np.int64(64 - self.bits)
        signed = (totals.view(np.int64) << shift) >> shift
        return signed * math.ldexp(1.0, -self.exponent)


def fixed_point(bits: int, limit: float, num: int) -> FixedPoint:
    """The finest numbers up to `limit` of which `num` can be added modulo 2^bits.

    >>> fixed_point(bits=32, limit=4.0, num=10).exponent
    25
    """
    largest_sum = 2 ** (bits - 1) - 1
    # Each number may be rounded up by one half. Fractions: float64 cannot hold 2^61 - 1.
    room = (Fraction(largest_sum, num) - Fraction(1, 2)) / Fraction(limit)
    exponent = room.numerator.bit_length() - room.denominator.bit_length()
    return FixedPoint(bits, limit, exponent if Fraction(2) ** exponent <= room else exponent - 1)
