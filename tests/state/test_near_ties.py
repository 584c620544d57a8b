"""Values that differ by rounding only are equal; all others are told apart."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tied import generators, rounded_otherwise, tied

from flfast.state.near_ties import EQUAL, first_lowest, largest, nearest_whole, signs

DTYPES = st.sampled_from([np.float32, np.float64])


@given(generators(), DTYPES, st.integers(1, 60), st.floats(0, 1), st.booleans())
def test_rounding_does_not_choose_the_largest(rng, dtype, size, share, positive):
    values, num = tied(rng, size, dtype), round(share * size)
    values = np.abs(values) if positive else -np.abs(values)
    found = largest(values, num)
    assert len(found) == num
    if num:
        threshold = np.sort(values)[size - num]
        if threshold == 0:  # which of the zeros does not matter
            return
        assert np.isin(np.flatnonzero(values > threshold), found).all()
        ties = np.flatnonzero(values == threshold)
        assert np.isin(ties, found).tolist() == sorted(np.isin(ties, found), reverse=True)
    assert largest(rounded_otherwise(values, rng), num).tolist() == found.tolist()


@given(generators(), st.integers(1, 60), st.floats(0, 1))
def test_the_largest_are_within_the_tolerance_of_sorted_ones(rng, size, share):
    values, num = rng.normal(1, 10 ** rng.uniform(-6, 0), size), round(share * size)
    found = largest(values, num)
    assert len(set(found)) == num
    assert (np.diff(found) > 0).all()
    if 0 < num < size:
        threshold = np.sort(values)[size - num]
        margin = EQUAL * abs(threshold)
        assert values[found].min() >= threshold - margin
        assert np.delete(values, found).max() <= threshold + margin


def test_values_that_differ_by_more_are_told_apart():
    values = np.array([1.0, 1.0 + 2 * EQUAL, 1.0 + 4 * EQUAL])
    assert largest(values, 1).tolist() == [2]
    assert largest(values, 2).tolist() == [1, 2]
    assert first_lowest(torch.from_numpy(values.copy()[::-1].copy())) == 2


@given(generators(), st.integers(1, 9))
def test_rounding_does_not_choose_the_lowest(rng, size):
    values = np.abs(tied(rng, (4, size), np.float64)) + 1
    found = first_lowest(torch.from_numpy(values))
    assert found.tolist() == values.argmin(axis=1).tolist()
    other = first_lowest(torch.from_numpy(rounded_otherwise(values, rng)))
    assert other.tolist() == found.tolist()


@given(generators(), DTYPES, st.integers(1, 40))
def test_rounding_is_no_sign(rng, dtype, size):
    values = tied(rng, size, dtype)
    scale = float(np.abs(values).mean())
    for seen in (values, rounded_otherwise(values, rng)):
        found = signs(torch.from_numpy(seen), scale)
        assert found.dtype == torch.from_numpy(values).dtype
        assert found.tolist() == np.sign(values).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_halves_go_up_whatever_their_last_digit_is(dtype):
    halves = torch.tensor([0.5, 1.5, 2.5, 99.5], dtype=dtype)
    for seen in (halves, halves.nextafter(halves - 1), halves.nextafter(halves + 1)):
        assert nearest_whole(seen).tolist() == [1.0, 2.0, 3.0, 100.0]
    whole = torch.tensor([-3.0, 0.0, 7.0, 2.0**23 + 1], dtype=dtype)
    assert nearest_whole(whole).tolist() == whole.tolist()
