"""Who is selected, as a function of what clients reported."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.federation.selections.power_of_choice import largest_losses
from flfast.zoo.federation.selections.oort import exploit, exploited_and_explored, scores

LOSSES = st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.5000001, 2.0, 1e9]), min_size=1, max_size=12)
UTILITIES = st.lists(st.floats(0, 1e6), min_size=1, max_size=12)


@given(LOSSES, st.integers(1, 15), st.randoms(use_true_random=False))
def test_power_of_choice_takes_the_largest_losses_and_of_equal_ones_the_lower_id(
    losses, count, random
):
    clients = random.sample(range(100), len(losses))
    # Losses that differ by rounding only are equal.
    loss = {k: round(found, 4) for k, found in zip(clients, losses, strict=True)}
    chosen = largest_losses(np.array(clients), np.array(losses), count)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(count, len(clients))
    for k in chosen:
        for other in set(clients) - set(chosen):
            assert (loss[k], -k) > (loss[other], -other)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20), st.floats(0, 1))
def test_oort_explores_its_share_unless_a_group_is_too_small(num_known, num_new, count, share):
    total = min(count, num_known + num_new)
    exploited, explored = exploited_and_explored(
        total, share, num_known=num_known, num_new=num_new
    )
    assert exploited + explored == total
    assert 0 <= exploited <= num_known
    assert 0 <= explored <= num_new
    if explored < math.ceil(total * share - 1e-9):
        assert explored == num_new
    if explored > math.ceil(total * share - 1e-9):
        assert exploited == num_known


def test_nine_tenths_of_ten_are_nine():
    assert exploited_and_explored(10, 0.9, num_known=20, num_new=20) == (1, 9)
    assert exploited_and_explored(10, 0.3, num_known=20, num_new=20) == (7, 3)


@given(UTILITIES, st.integers(2, 50), st.sampled_from([0.01, 0.5, 0.95, 1.0]), st.integers(0, 9))
def test_scores_grow_with_utility_and_staleness(utilities, round_idx, clip, seed):
    utility = np.array(utilities)
    last = np.random.default_rng(seed).integers(1, round_idx, size=len(utility))
    found = scores(utility, last, round_idx, clip)
    uncertainty = np.sqrt(0.1 * np.log(round_idx) / last)
    assert (found > 0).all()
    assert (found - uncertainty <= 1 + 1e-9).all()
    order = np.argsort(utility, kind="stable")
    assert (np.diff((found - uncertainty)[order]) >= -1e-9).all()
    earlier = scores(utility, np.maximum(last - 1, 1), round_idx, clip)
    assert (earlier >= found).all()


def test_an_outlier_counts_as_the_clip_quantile():
    utility, last = np.array([10.0, 20.0, 30.0, 1000.0]), np.array([1, 1, 1, 1])
    clipped = scores(utility, last, 4, clip=0.5)
    assert clipped[2] == clipped[3]
    assert scores(utility, last, 4, clip=1.0)[3] > clipped[3]


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=12), st.data())
def test_oort_draws_distinct_clients_above_the_cutoff(values, data):
    values = np.array(values)
    num = data.draw(st.integers(0, len(values)))
    cutoff = data.draw(st.floats(0, 1))
    seed = data.draw(st.integers(0, 99))
    places = exploit(values, num, cutoff, np.random.default_rng(seed))
    assert len(set(places.tolist())) == len(places) == num
    if num:
        assert values[places].min() >= cutoff * np.sort(values)[::-1][num - 1]
    again = exploit(values, num, cutoff, np.random.default_rng(seed))
    assert places.tolist() == again.tolist()


def test_oort_draws_in_proportion_to_scores():
    rng = np.random.default_rng(0)
    values = np.array([1.0, 3.0, 0.1, 2.0])
    hits = np.bincount([exploit(values, 1, 0.3, rng)[0] for _ in range(3000)], minlength=4)
    # 0.1 is below 0.3 * 3. Binomial(3000, 1/6, 1/2, 1/3): standard deviations below 28.
    assert hits[2] == 0
    assert hits == pytest.approx([500, 1500, 0, 1000], abs=120)
