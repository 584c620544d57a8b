"""Virtual time: how long clients take, and who fails."""

from functools import partial

import numpy as np
import pytest
from uneven import uneven

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.client import LocalStage
from flfast.datamodules.population import Kinds
from flfast.federation.devices.device import DAY, Devices
from flfast.federation.timing import Timing, num_trained_examples
from flfast.federation.works import full
from flfast.state.plan import Batching, RoundPlan

FEDAVG = Algorithm(name="fedavg")


def plan_of(batch_size=4, *, epochs=None, steps=None, round_idx=1, work_fraction=1.0):
    batching = Batching(batch_size)
    return RoundPlan(
        round_idx,
        0,
        0.1,
        batching,
        epochs,
        steps,
        "single",
        "clients",
        "cpu",
        "32-true",
        work_fraction,
    )


def timing_of(data, devices, work=full, message_bytes=(0, 0)):
    return Timing(devices, work, data, FEDAVG, lambda _: message_bytes)


def test_work_counts_every_pass_of_every_stage():
    assert num_trained_examples(10, plan_of(epochs=3), FEDAVG) == 30
    assert num_trained_examples(8, plan_of(steps=5), FEDAVG) == 20
    assert num_trained_examples(3, plan_of(steps=5), FEDAVG) == 15  # less than a batch
    assert num_trained_examples(10, plan_of(-1, steps=5), FEDAVG) == 50
    two = Algorithm(name="two", stages=(LocalStage(epochs=4), LocalStage()))
    assert num_trained_examples(10, plan_of(epochs=3), two) == 70
    half = Algorithm(name="half", stages=(LocalStage(share=0.5), LocalStage()))
    assert num_trained_examples(10, plan_of(epochs=3), half) == 15 + 30
    assert num_trained_examples(8, plan_of(epochs=2, work_fraction=0.5), half) == 8 + 8


def test_partial_work_counts_whole_steps_of_every_stage():
    assert num_trained_examples(8, plan_of(epochs=2, work_fraction=0.5), FEDAVG) == 8
    assert num_trained_examples(8, plan_of(epochs=2, work_fraction=0.01), FEDAVG) == 4, (
        "at least a step"
    )
    assert num_trained_examples(8, plan_of(steps=10, work_fraction=0.3), FEDAVG) == 12
    two = Algorithm(name="two", stages=(LocalStage(epochs=4), LocalStage()))
    assert num_trained_examples(8, plan_of(epochs=2, work_fraction=0.5), two) == 16 + 8


def test_a_trip_takes_what_the_formula_says(make_data):
    data = make_data([2, 9, 4])
    clients = np.array([0, 1, 2])
    found = timing_of(data, uneven, message_bytes=(3000, 5000)).trips(
        clients, plan_of(epochs=2), clock=0.0
    )
    own = uneven(clients, seed=data.seed)
    sizes = np.array([2, 9, 4])
    expected = 0.25 + own.per_example * 2 * sizes + 3000 / own.down + 5000 / own.up
    assert found.seconds == pytest.approx(expected)
    assert not found.fails.any()
    assert (found.work_fractions == 1).all()


def test_each_model_has_its_costs_and_messages(make_data):
    """Sizes are asked of one client of each model; one that nobody has costs no more."""
    data = make_data([2, 9, 4, 1])
    data.kinds = Kinds(("large", "unused", "small"), np.array([2, 0, 2, 0]))
    sizes, asked = {0: (300, 500), 1: (3000, 5000)}, []

    def message_bytes(client_id):
        asked.append(client_id)
        return sizes[client_id]

    costs = np.array([1.0, 7.0, 0.25])
    timing = Timing(uneven, full, data, FEDAVG, message_bytes, costs)
    timing.check(plan_of(epochs=2))
    clients = np.array([3, 2, 0])
    found = timing.trips(clients, plan_of(epochs=2), clock=0.0)
    own = uneven(clients, seed=data.seed)
    training = own.per_example * 2 * np.array([1 * 1.0, 4 * 0.25, 2 * 0.25])
    down, up = np.array([3000, 300, 300]), np.array([5000, 500, 500])
    assert found.seconds == pytest.approx(0.25 + training + down / own.down + up / own.up)
    assert sorted(asked) == [0, 1]


def test_devices_fail_at_their_hazard(make_data):
    data = make_data([1] * 4000)
    devices = partial(uneven, hazard=0.5)
    clients = np.arange(4000)
    slow = timing_of(data, devices).trips(clients, plan_of(epochs=8), clock=0.0)
    full_time = timing_of(data, uneven).trips(clients, plan_of(epochs=8), clock=0.0).seconds
    expected = 1 - np.exp(-0.5 * full_time)
    assert slow.fails.mean() == pytest.approx(expected.mean(), abs=0.03)
    assert (slow.seconds[slow.fails] < full_time[slow.fails]).all()
    again = timing_of(data, devices).trips(clients, plan_of(epochs=8, round_idx=2), clock=0.0)
    assert (again.fails != slow.fails).any(), "another round, other failures"


def test_a_client_that_goes_away_while_it_works_fails(make_data):
    data = make_data([5, 5])

    def half_a_day(clients):
        same = np.ones(len(clients))
        begins = np.array([0.0, DAY / 2])[clients]
        free = np.full(len(clients), np.inf)
        return Devices(same, 0 * same, free, free, 0.5 * same, begins, 0 * same)

    timing, plan = timing_of(data, half_a_day), plan_of(epochs=1)
    at_noon = timing.trips(np.array([0, 1]), plan, clock=DAY / 2 - 0.5)
    assert at_noon.fails.tolist() == [True, True]
    assert at_noon.seconds == pytest.approx([0.5, 0.0], abs=1e-5), "the second one is not there"
    assert timing.devices(np.array([1])).wait(DAY / 2 - 0.5).tolist() == [0.5]
    assert timing.trips(np.array([0]), plan, clock=3 * DAY + 1).fails.tolist() == [False]
