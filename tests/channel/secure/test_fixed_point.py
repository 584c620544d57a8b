"""Fixed-point numbers: their error, their sums, and what is too large."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.channel.secure.fixed_point import FixedPoint, fixed_point

BITS = st.integers(16, 62)
LIMITS = st.floats(1e-3, 2.0**31)


@given(BITS, st.floats(1e-3, 100.0), st.integers(1, 1000), st.integers(0, 2**32))
def test_a_number_is_rounded_to_the_nearest_step(bits, limit, num, seed):
    numbers = fixed_point(bits, limit, num)
    values = np.random.default_rng(seed).uniform(-limit, limit, 20)
    encoded, clamped = numbers.encode(values)
    assert clamped == 0
    found = numbers.decode(encoded.view(np.uint64))
    assert np.abs(found - values).max() <= numbers.step / 2 + 1e-15 * limit


@given(BITS, LIMITS, st.integers(1, 5000))
def test_the_largest_sum_fits_and_finer_steps_would_not(bits, limit, num):
    numbers = fixed_point(bits, limit, num)
    for sign in (1.0, -1.0):
        largest, _ = numbers.encode(np.array([sign * limit]))
        total = int(largest[0]) * num
        assert abs(total) < 2 ** (bits - 1)
        wrapped = np.array([total % 2**bits], dtype=np.uint64)
        error = abs(numbers.decode(wrapped)[0] - sign * num * limit)
        assert error <= num * (numbers.step / 2 + 1e-15 * limit)
    finer = limit * math.ldexp(1.0, numbers.exponent + 1) + 0.5
    assert finer * num > (2 ** (bits - 1) - 1) * (1 - 1e-12)


@given(st.integers(0, 2**31 - 1), st.integers(1, 1000))
def test_counts_are_exact(count, num):
    numbers = fixed_point(62, 2.0**31, num)
    encoded, _ = numbers.encode(np.array([float(count)]))
    assert numbers.decode((encoded * num).view(np.uint64))[0] == count * num


def test_larger_values_are_clamped_and_counted():
    numbers = FixedPoint(bits=32, limit=1.0, exponent=20)
    encoded, clamped = numbers.encode(np.array([0.5, 1.0, -1.5, 2.0, 1e30]))
    assert clamped == 3
    assert numbers.decode(encoded.view(np.uint64)).tolist() == [0.5, 1.0, -1.0, 1.0, 1.0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_an_error(value):
    with pytest.raises(ValueError, match="NaN or infinite"):
        FixedPoint(32, 1.0, 20).encode(np.array([0.0, value]))


def test_encoding_leaves_its_input_alone():
    values = np.array([0.25, 3.0])
    FixedPoint(32, 1.0, 20).encode(values)
    assert values.tolist() == [0.25, 3.0]
