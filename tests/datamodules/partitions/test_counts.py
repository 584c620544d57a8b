import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flfast.datamodules.partitions.counts import (
    assign,
    check_enough,
    even_counts,
    largest_remainder,
    raise_to_minimum,
)

COUNTS = hnp.arrays(
    np.int64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.integers(0, 50)
)


def test_too_many_clients_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"partition.min_samples=50 needs 500 .* there are 360"):
        check_enough(360, num_clients=10, min_samples=50)


def test_exactly_enough_examples_are_enough():
    check_enough(500, num_clients=10, min_samples=50)


@given(total=st.integers(0, 1000), num_parts=st.integers(1, 50))
def test_even_counts_sum_to_the_total_and_differ_by_at_most_one(total, num_parts):
    parts = even_counts(total, num_parts)
    assert parts.sum() == total
    assert len(parts) == num_parts
    assert np.ptp(parts) <= 1


@given(weights=COUNTS, seed=st.integers(0, 99))
def test_rounding_keeps_the_totals_and_stays_within_one_of_the_shares(weights, seed):
    shares = (weights + 1) / (weights + 1).sum(axis=1, keepdims=True)
    totals = np.random.default_rng(seed).integers(10**9, size=len(shares))
    counts = largest_remainder(shares, totals)
    np.testing.assert_array_equal(counts.sum(axis=1), totals)
    assert (np.abs(counts - shares * totals[:, None]) < 1 + 1e-6).all()


@given(counts=COUNTS)
def test_the_repair_keeps_every_class_and_reaches_the_highest_feasible_minimum(counts):
    minimum = counts.sum() // len(counts)
    repaired = raise_to_minimum(counts, int(minimum))
    np.testing.assert_array_equal(repaired.sum(axis=0), counts.sum(axis=0))
    assert repaired.min() >= 0
    assert repaired.sum(axis=1).min() >= minimum


@given(counts=COUNTS)
def test_the_repair_changes_nothing_where_nobody_is_short(counts):
    np.testing.assert_array_equal(raise_to_minimum(counts, int(counts.sum(axis=1).min())), counts)


def test_the_richest_client_gives_of_its_most_frequent_class():
    counts = np.array([[1, 0], [3, 9], [5, 0]])
    np.testing.assert_array_equal(raise_to_minimum(counts, 4), [[1, 3], [3, 6], [5, 0]])


@given(counts=COUNTS, seed=st.integers(0, 99))
def test_owners_have_exactly_the_counted_examples(counts, seed):
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.repeat(np.arange(counts.shape[1]), counts.sum(axis=0)))
    owner = assign(classes, counts, rng)
    found = np.zeros_like(counts)
    np.add.at(found, (owner, classes), 1)
    np.testing.assert_array_equal(found, counts)
