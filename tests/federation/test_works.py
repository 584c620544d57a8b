"""Shares of local training."""

from functools import partial

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from flfast.federation.works import by_chance, by_speed, full

SECONDS = st.just(0.0) | st.floats(1e-6, 1e18)


@given(
    st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=9),
    st.floats(1e-6, 1e18),
    st.floats(1e-6, 1),
)
def test_by_speed_ends_in_time_or_does_the_smallest_share(times, seconds, smallest):
    training, around = np.array(times).T
    shares = by_speed(training=training, around=around, seconds=seconds, smallest=smallest)
    assert ((shares >= smallest) & (shares <= 1)).all()
    ends = around + shares * training
    in_time = ends <= seconds * (1 + 1e-9)
    assert (in_time | (shares == smallest) | (training == 0)).all()
    # Who does not do all has no time left.
    assert ((shares == 1) | (ends >= seconds * (1 - 1e-9))).all()


def test_by_speed_divides_what_is_left_by_training():
    shares = by_speed(
        training=np.array([10.0, 16.0, 100.0, 0.0, 5.0]),
        around=np.array([2.0, 2.0, 2.0, 99.0, 99.0]),
        seconds=10.0,
        smallest=0.25,
    )
    assert shares.tolist() == [0.8, 0.5, 0.25, 1.0, 0.25]


def test_stragglers_do_a_uniform_share():
    clients = np.arange(20_000)
    shares = by_chance(clients=clients, round_idx=3, seed=0, fraction=0.9)
    fewer = shares[shares < 1]
    # The standard deviation of the share is 0.002.
    assert len(fewer) / len(clients) == pytest.approx(0.9, abs=0.01)
    assert scipy.stats.kstest(fewer, "uniform").pvalue > 0.01
    assert shares.min() > 0


@given(
    st.lists(st.integers(0, 2**31 - 1), max_size=20),
    st.integers(1, 10**6),
    st.integers(0, 2**40),
    st.floats(0, 1),
)
def test_stragglers_are_a_function_of_seed_round_and_client(ids, round_idx, seed, fraction):
    work = partial(by_chance, round_idx=round_idx, seed=seed, fraction=fraction)
    shares = work(clients=np.array(ids, dtype=np.int64))
    assert ((shares > 0) & (shares <= 1)).all()
    again = [work(clients=np.array([client]))[0] for client in ids]
    assert shares.tolist() == again


def test_stragglers_change_from_round_to_round():
    clients = np.arange(1000)
    one, two = (by_chance(clients=clients, round_idx=r, seed=0, fraction=0.5) for r in (1, 2))
    assert 0.4 < np.mean((one < 1) != (two < 1)) < 0.6


def test_without_stragglers_all_do_all():
    clients = np.arange(5)
    assert by_chance(clients=clients, round_idx=1, seed=0, fraction=0.0).tolist() == [1] * 5
    assert full(clients=clients).tolist() == [1] * 5
