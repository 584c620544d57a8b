"""Synchronous rounds in virtual time: deadlines, first uploads, failures, availability."""

from functools import partial

import numpy as np
import pytest
from uneven import uneven

from flfast.federation.devices.device import DAY, Devices
from flfast.federation.devices.ideal import ONE_SECOND
from flfast.federation.paces.sync import sync
from flfast.federation.samplers.cyclic import cyclic


def a_second_an_example(clients):
    same, free = np.ones(len(clients)), np.full(len(clients), np.inf)
    return Devices(0 * same, same, free, free, same, 0 * same, 0 * same)


def rounds(**options):
    return partial(sync, **{"deadline": None, "keep_first": None, **options})


class Turns(list):
    """A callback that collects turns."""

    def on_turn(self, federation, turn):
        self.append(turn)


def run(federation):
    turns = Turns()
    federation.callbacks.append(turns)
    federation.run()
    return federation.history[1:], turns


@pytest.fixture
def make(make_data, make_federation):
    def make(sizes, **options):
        options = {"devices": a_second_an_example, **options}
        return make_federation(make_data(sizes), callbacks=[], **options)

    return make


def test_the_clock_waits_for_the_slowest_client(make):
    history, turns = run(make([2, 9, 4], rounds=3))
    assert [row["clock/seconds"] for row in history] == [9.0, 18.0, 27.0]
    assert [(e.seconds, e.kind, e.client) for e in turns[0].events] == [
        *((0.0, "dispatch", 0), (0.0, "dispatch", 1), (0.0, "dispatch", 2)),
        *((2.0, "arrival", 0), (4.0, "arrival", 2), (9.0, "arrival", 1), (9.0, "step", -1)),
    ]


def test_ideal_devices_measure_no_time(make):
    history, turns = run(make([2, 9], devices=ONE_SECOND))
    assert "clock/seconds" not in history[0]
    assert not turns[0].events


def test_clients_that_miss_the_deadline_are_late(make):
    federation = make([2, 9, 4, 10], make_pace=rounds(deadline=5.0))
    (row,), (turn,) = run(federation)
    assert [part.tolist() for part in turn.cohort] == [[0, 2], [], [1, 3]]
    assert (row["cohort/clients"], row["cohort/dropped"]) == (2, 2)
    assert row["clock/seconds"] == 5.0
    weights = sum(leaf.numel() * 4 for leaf in federation.weights().values())
    assert (row["comm/up_bytes"], row["comm/down_bytes"]) == (2 * weights, 4 * weights)


def test_the_first_uploads_end_a_round(make):
    (row,), (turn,) = run(make([2, 9, 4, 10], make_pace=rounds(keep_first=3)))
    assert [part.tolist() for part in turn.cohort] == [[0, 1, 2], [], [3]]
    assert row["clock/seconds"] == 9.0


def test_equally_fast_clients_count_in_the_order_of_their_ids(make):
    _, (turn,) = run(make([3, 3, 3], make_pace=rounds(keep_first=2)))
    assert turn.cohort.clients.tolist() == [0, 1]


def test_where_nobody_is_in_time_the_model_stays(make, caplog):
    federation = make([3, 3], make_pace=rounds(deadline=0.5))
    before = {name: leaf.clone() for name, leaf in federation.weights().items()}
    (row,), _ = run(federation)
    assert row["cohort/dropped"] == 2
    assert "round 1: no client was in time; see pace.deadline" in caplog.text
    after = federation.weights()
    assert all((after[name] == leaf).all() for name, leaf in before.items())


def test_failures_before_the_end_of_the_round_are_dropped(make):
    devices = partial(uneven, hazard=0.2)
    history, turns = run(make([2, 3, 4, 5, 6, 7], devices=devices, rounds=20))
    kinds = [event.kind for turn in turns for event in turn.events]
    assert 10 < kinds.count("failure") < 110
    for row, turn in zip(history, turns, strict=True):
        failed = {event.client for event in turn.events if event.kind == "failure"}
        assert set(turn.cohort.dropped.tolist()) == failed
        assert row["cohort/dropped"] == len(failed)


def test_only_available_clients_are_drawn(make):
    def devices(clients, *, seed):
        own = uneven(clients, seed=seed, available=0.4)
        return own._replace(fixed=np.full(len(clients), 7000.0))

    _, turns = run(make([3] * 12, devices=devices, rounds=30))
    drawn = [{e.client for e in turn.events if e.kind == "dispatch"} for turn in turns]
    for turn, clients in zip(turns, drawn, strict=True):
        start = turn.events[0].seconds
        until = devices(np.arange(12), seed=0).until(start)
        assert clients == set(np.flatnonzero(until > 0).tolist())
    assert len(set(map(frozenset, drawn))) > 1, "the day goes on"


def test_a_round_waits_until_somebody_is_available(make):
    def at_night(clients):
        same, free = np.ones(len(clients)), np.full(len(clients), np.inf)
        return Devices(5e4 * same, 0 * same, free, free, 0.5 * same, 4096.0 * same, 0 * same)

    history, turns = run(make([3, 3], devices=at_night, rounds=2))
    assert [turn.events[0].seconds for turn in turns] == pytest.approx([4096.0, 4096.0 + DAY])
    end = 4096.0 + DAY / 2
    assert history[0]["clock/seconds"] == pytest.approx(end), "both fail as the night ends"


def test_samplers_that_take_turns_need_everybody(make):
    devices = partial(uneven, available=0.4)
    turns = partial(cyclic, fraction=0.5, count=None, dropout=0.0)
    federation = make([3, 3, 3, 3], devices=devices)
    federation.sampler = turns
    with pytest.raises(ValueError, match=r"sampler: its cohorts are fixed by the round"):
        federation.run()
    always = make([3, 3, 3, 3], devices=uneven, rounds=2)
    always.sampler = turns
    _, (first, second) = run(always)
    assert {*first.cohort.clients, *second.cohort.clients} == {0, 1, 2, 3}


def test_more_first_uploads_than_clients_are_refused(make):
    federation = make([3, 3, 3], make_pace=rounds(keep_first=4))
    with pytest.raises(ValueError, match=r"pace\.keep_first=4: cohorts have 3 .*allowed: 1 to 3"):
        federation.run()
