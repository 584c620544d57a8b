"""Vectors with values that are equal by symmetry, and the same vectors after other rounding."""

import numpy as np
from hypothesis import strategies as st

ROUNDING = 4
"""Units in the last place by which two ways to compute a number differ here."""


def tied(rng, shape, dtype):
    """Random numbers of few magnitudes: duplicates, exact opposites, zeros and -0.0."""
    magnitudes = rng.permutation(np.geomspace(0.1, 10, 12))[: rng.integers(1, 8)]
    magnitudes = np.append(rng.uniform(0.7, 1.4) * magnitudes, [0.0, 0.0])
    return (rng.choice(magnitudes, shape) * rng.choice([-1.0, 1.0], shape)).astype(dtype)


def rounded_otherwise(values, rng):
    """The values with errors of rounding; errors of zeros are relative to typical values."""
    size = np.where(values == 0, np.abs(values).mean(), np.abs(values))
    error = rng.uniform(-ROUNDING, ROUNDING, values.shape) * np.finfo(values.dtype).eps * size
    return (values + error).astype(values.dtype)


def generators():
    """Seeded NumPy generators, as a strategy."""
    return st.integers(0, 2**32 - 1).map(np.random.default_rng)
