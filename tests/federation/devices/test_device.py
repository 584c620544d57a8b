"""Availability of devices: when it ends, and how long one waits for it."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from flfast.federation.devices.device import DAY, Devices, fastest_first

SHARES = st.floats(0.001, 1.0)
BEGINNINGS = st.floats(0, DAY, exclude_max=True)
CLOCKS = st.floats(0, 1e9)


def device(available, begins):
    one, fast = np.ones(1), np.full(1, np.inf)
    return Devices(0 * one, 0 * one, fast, fast, available * one, begins * one, 0 * one)


@given(SHARES, BEGINNINGS, CLOCKS)
@example(available=0.5, begins=1e-20, clock=0.0)
@example(available=0.5, begins=0.3, clock=1_000_000.1)
def test_who_waits_is_then_available(available, begins, clock):
    """However clock + wait is rounded: an event loop would wait again, for ever."""
    one = device(available, begins)
    wait = one.wait(clock)
    assert 0 <= wait[0] <= DAY
    assert (wait[0] == 0) == (one.until(clock)[0] > 0)
    assert one.until(clock + wait[0])[0] > 0


@given(SHARES, BEGINNINGS, CLOCKS)
def test_after_the_end_one_waits_for_the_next_day(available, begins, clock):
    one = device(available, begins)
    until = one.until(clock)[0]
    if available == 1:
        assert until == np.inf
        return
    assert until <= available * DAY
    end = clock + until + 0.01
    if until and (1 - available) * DAY > 1:
        assert one.until(end)[0] == 0
        np.testing.assert_allclose(one.wait(end), (1 - available) * DAY, atol=0.02)


@given(SHARES, BEGINNINGS)
def test_the_share_of_the_day_is_kept(available, begins):
    one = device(available, begins)
    times = (np.arange(1000) + 0.5) * DAY / 1000
    there = np.mean([one.until(clock)[0] > 0 for clock in times])
    assert abs(there - available) <= 0.002


@given(SHARES, BEGINNINGS, st.floats(0, 1e6), st.integers(0, 50))
def test_days_repeat(available, begins, clock, days):
    one = device(available, begins)
    first, later = one.until(clock), one.until(clock + days * DAY)
    if 0.01 < first[0] < available * DAY - 0.01:  # else rounding decides
        np.testing.assert_allclose(later, first, atol=1e-3)


def test_devices_are_ordered_by_training_then_by_fixed_seconds_then_by_place():
    zero = np.zeros(5)
    devices = Devices(
        np.array([9.0, 2.0, 1.0, 2.0, 0.0]), np.array([1.0, 3.0, 3.0, 3.0, 4.0]), *[zero] * 5
    )
    assert fastest_first(devices).tolist() == [0, 2, 1, 3, 4]
