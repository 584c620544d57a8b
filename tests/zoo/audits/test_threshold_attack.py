"""Telling members from others by their losses: rates over all thresholds, by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.zoo.audits.membership import separation, standard_error

LOSSES = st.lists(st.integers(0, 6), min_size=1, max_size=12)


def test_separated_losses_are_certain_and_equal_ones_tell_nothing():
    low, high = np.arange(5.0), np.arange(10.0, 15.0)
    found = separation(low, high)
    assert (found.scores["auc"], found.scores["advantage"], found.scores["tpr_at_1_fpr"]) == (
        1,
        1,
        1,
    )
    assert (found.scores["auc_low"], found.scores["auc_high"]) == (1, 1)
    wrong = separation(high, low)
    assert (wrong.scores["auc"], wrong.scores["advantage"], wrong.scores["tpr_at_1_fpr"]) == (
        0,
        0,
        0,
    )
    equal = separation(np.ones(7), np.ones(9))
    assert (equal.scores["auc"], equal.scores["advantage"], equal.scores["tpr_at_1_fpr"]) == (
        0.5,
        0,
        0,
    )


@given(LOSSES, LOSSES)
def test_rates_are_those_of_a_loop_over_pairs_and_thresholds(members, others):
    members, others = np.array(members, float), np.array(others, float)
    found = separation(members, others)
    pairs = [(a < b) + (a == b) / 2 for a in members for b in others]
    assert found.scores["auc"] == pytest.approx(np.mean(pairs))
    rates = [(0.0, 0.0)] + [((others <= t).mean(), (members <= t).mean()) for t in range(7)]
    assert found.scores["advantage"] == pytest.approx(max(tpr - fpr for fpr, tpr in rates))
    assert found.scores["tpr_at_1_fpr"] == pytest.approx(
        max(tpr for fpr, tpr in rates if fpr <= 0.01)
    )
    assert 0 <= found.scores["auc_low"] <= found.scores["auc"] <= found.scores["auc_high"] <= 1


@given(st.integers(1, 500), st.integers(1, 500))
def test_the_error_of_guessing_is_that_of_the_rank_sum_test(num_members, num_others):
    """Its variance without ties is (M + N + 1) / (12 M N)."""
    expected = math.sqrt((num_members + num_others + 1) / (12 * num_members * num_others))
    assert standard_error(0.5, num_members, num_others) == pytest.approx(expected)


def test_the_interval_holds_guessing_in_95_of_100_cases():
    rng = np.random.default_rng(0)
    found = [separation(rng.normal(size=40), rng.normal(size=60)) for _ in range(400)]
    share = np.mean([one.scores["auc_low"] <= 0.5 <= one.scores["auc_high"] for one in found])
    assert 0.92 <= share <= 0.98


def test_infinite_and_undefined_losses_are_the_largest():
    found = separation(np.array([0.0, 1.0]), np.array([np.inf, np.nan]))
    assert found.scores["auc"] == 1
