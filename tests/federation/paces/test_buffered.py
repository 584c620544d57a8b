"""Asynchronous training in virtual time, against a simulation that is written out."""

from functools import partial

import numpy as np
import pytest
import torch
from references import Reference
from sampling import others_slow
from torch import nn
from uneven import partial_work, uneven

from flfast.algorithms.contract.algorithm_capabilities import capabilities_of
from flfast.algorithms.ditto import ditto
from flfast.algorithms.scaffold import scaffold
from flfast.federation.devices.device import Devices
from flfast.federation.devices.ideal import ONE_SECOND
from flfast.federation.paces.asynchronous import asynchronous
from flfast.federation.paces.buffered import UNROUNDED, buffered
from flfast.federation.samplers.cyclic import cyclic
from flfast.federation.samplers.poisson import poisson
from flfast.federation.sampling import Sampling
from flfast.state.plan import Batching
from flfast.state.randomness import generator
from flfast.zoo.algorithms.fedamp import fedamp
from flfast.zoo.algorithms.feddyn import feddyn
from flfast.zoo.algorithms.fedproto import fedproto
from flfast.zoo.algorithms.mime import mime

LATE = {"discount": "polynomial", "strength": None, "patience": None}
DOUBLE = {"precision": "64-true"}


class Turns(list):
    """A callback that collects turns."""

    def on_turn(self, federation, turn):
        self.append(turn)


class Statuses(list):
    """A callback that collects the rows of clients."""

    def on_round_end(self, federation, row, clients):
        self.append(clients)


class Weights(list):
    """A callback that collects the server's weights."""

    def on_round_end(self, federation, row, clients):
        self.append(vector(federation))


def fedbuff(buffer, **options):
    return partial(buffered, buffer=buffer, **{**LATE, **options})


def fedasync(mixing, **options):
    return partial(asynchronous, mixing=mixing, **{**LATE, **options})


@pytest.fixture
def make(make_data, make_federation):
    """(sizes, clients at work, options) -> a federation of softmax regressions, in float64."""

    def make(sizes, count, **options):
        data = make_data(sizes, features=(3,))
        torch.manual_seed(2)  # noqa: TID251 - a test's own model
        model = nn.Linear(3, data.num_classes)
        options = {"batching": Batching(2), "trainer": DOUBLE, "callbacks": [Turns()], **options}
        return make_federation(data, model, sampling={"count": count}, **options)

    return make


def vector(federation):
    return np.concatenate(
        [leaf.double().numpy().ravel() for leaf in federation.weights().values()]
    )


SIZES = [5, 2, 9, 4, 7, 3, 6, 8]


@pytest.mark.parametrize("count", others_slow([3, 8], [3]))
def test_equal_speeds_and_a_buffer_of_all_is_fedavg(make, count):
    rounds = make(SIZES, count, rounds=4)
    rounds.run()
    turned = make(SIZES, count, rounds=4, make_pace=fedbuff(count), devices=ONE_SECOND)
    turned.run()
    assert (vector(turned) == vector(rounds)).all()
    (turns,) = turned.callbacks
    assert [t.cohort.clients.tolist() for t in turns] == [
        rounds.cohort(r).clients.tolist() for r in range(1, 5)
    ]
    assert [row["clock/seconds"] for row in turned.history[1:]] == [1.0, 2.0, 3.0, 4.0]
    assert all(row["clock/staleness_max"] == 0 for row in turned.history[1:])


def test_one_client_at_work_is_sequential_sgd(make):
    federation = make(SIZES, 1, rounds=6, make_pace=fedasync(1.0), devices=uneven)
    reference = Reference(federation.data, batch_size=2, epochs=1, lr=0.1)
    w = vector(federation)
    federation.run()
    (turns,) = federation.callbacks
    for round_idx, turn in enumerate(turns, 1):
        (client,) = turn.cohort.clients.tolist()
        for step in reference.steps(client, round_idx):
            w -= 0.1 * reference.gradient(w, step)
    assert vector(federation) == pytest.approx(w, abs=1e-12)


def simulate(federation, *, steps, at_work, buffer, mixing):
    """Discrete events, one at a time, with clients that train as soon as they begin.

    Yields the model after each step, and the events.
    """
    data, w = federation.data, vector(federation)
    reference = Reference(data, batch_size=2, epochs=2, lr=0.1)
    now, version, num_draws, events = 0.0, 1, 0, []
    flying, waiting = [], []  # (end, order, client, version, change or model, size)
    order = 0
    while version <= steps:
        due = sorted(flight for flight in flying if flight[0] <= now)
        if due and len(waiting) < buffer:
            flight = due[0]
            flying.remove(flight)
            waiting.append(flight)
            events.append((flight[0], "arrival", flight[2], version - flight[3]))
        elif len(waiting) == buffer:
            late = [version - flight[3] for flight in waiting]
            factors = [(1 + staleness) ** -0.5 for staleness in late]
            sizes = np.array([data.num_train[flight[2]] for flight in waiting], dtype=float)
            if mixing is None:
                changes = [s * (f[5] - f[4]) for s, f in zip(factors, waiting, strict=True)]
                w = w + sizes / sizes.sum() @ np.array(changes)
            else:
                (flight,), (factor,) = waiting, factors
                w = (1 - mixing * factor) * w + mixing * factor * flight[5]
            events.append((now, "step", -1, 0))
            waiting, version = [], version + 1
            yield w, events
        else:
            busy = {flight[2] for flight in (*flying, *waiting)}
            free = [k for k in range(data.num_clients) if k not in busy]
            missing = min(at_work - len(flying), len(free))
            if missing:
                num_draws += 1
                rng = generator(data.seed, "cohort", num_draws)
                places = np.sort(rng.choice(len(free), missing, replace=False, shuffle=False))
                for client in (free[place] for place in places):
                    trained = w.copy()
                    for step in reference.steps(client, version):
                        trained -= 0.1 * reference.gradient(trained, step)
                    device = uneven(np.array([client]), seed=data.seed)
                    work = 2 * data.num_train[client] * device.per_example[0]
                    sent = w.nbytes / device.down[0] + w.nbytes / device.up[0]
                    trip = device.fixed[0] + sent + work
                    order += 1
                    flying.append((now + trip, order, client, version, w.copy(), trained))
                    events.append((now, "dispatch", client, 0))
            now = min(flight[0] for flight in flying)


@pytest.mark.parametrize("problem", others_slow(range(20), range(2)))
def test_the_written_out_simulation_gives_the_same_model(make, problem):
    rng = np.random.default_rng(problem)
    sizes = rng.integers(1, 12, size=rng.integers(4, 12)).tolist()
    at_work = int(rng.integers(1, len(sizes) + 1))
    mixing = float(rng.uniform(0.2, 1)) if problem % 4 == 0 else None
    buffer = 1 if mixing else int(rng.integers(1, at_work + 1))
    federation = make(
        sizes,
        at_work,
        rounds=12,
        local_epochs=2,
        devices=uneven,
        make_pace=fedasync(mixing) if mixing else fedbuff(buffer),
    )
    federation.data.num_train = federation.data.train_clients.sizes()
    simulated = simulate(federation, steps=12, at_work=at_work, buffer=buffer, mixing=mixing)
    *_, (expected, events) = simulated
    federation.run()
    (turns,) = federation.callbacks
    found = [(e.seconds, e.kind, e.client, e.staleness) for turn in turns for e in turn.events]
    assert [event[1:] for event in found] == [event[1:] for event in events]
    assert [event[0] for event in found] == pytest.approx([event[0] for event in events])
    assert vector(federation) == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
def test_each_client_counts_once_in_a_buffer_and_works_once_at_a_time(make):
    federation = make(SIZES, 4, rounds=40, make_pace=fedbuff(3), devices=uneven)
    federation.run()
    (turns,) = federation.callbacks
    at_work, in_buffer = set(), set()
    for event in (event for turn in turns for event in turn.events):
        if event.kind == "dispatch":
            assert event.client not in at_work | in_buffer
            at_work.add(event.client)
        elif event.kind == "arrival":
            at_work.remove(event.client)
            in_buffer.add(event.client)
        else:
            assert len(in_buffer) == 3
            in_buffer = set()
        assert len(at_work) <= 4


def test_failures_free_their_place_and_change_nothing(make):
    devices = partial(uneven, hazard=0.3, available=0.5)
    federation = make(SIZES, 4, rounds=30, make_pace=fedbuff(2), devices=devices)
    federation.run()
    (turns,) = federation.callbacks
    kinds = [event.kind for turn in turns for event in turn.events]
    assert kinds.count("failure") > 10
    assert all(len(turn.cohort.clients) == 2 for turn in turns)
    dropped = sum(row["cohort/dropped"] for row in federation.history[1:])
    assert 0 < dropped <= kinds.count("failure")
    times = [event.seconds for turn in turns for event in turn.events]
    assert times == sorted(times)
    starts = [event for turn in turns for event in turn.events if event.kind == "dispatch"]
    for event in starts:
        assert devices(np.array([event.client]), seed=0).until(event.seconds) > 0


def test_only_versions_in_flight_are_kept(make):
    federation = make(SIZES, 3, rounds=50, make_pace=fedbuff(1), devices=uneven)
    while len(federation.history) <= 50:
        federation.rounds = max(len(federation.history), 1)
        federation.run()
        assert len(federation.pace.state_dict()["versions"]) <= 3


def test_partial_work_is_trained_and_weighed(make):
    options = {"devices": uneven, "work": partial_work, "local_epochs": 3, "rounds": 6}
    federation = make([9] * 6, 3, make_pace=fedbuff(2), **options)
    statuses = Statuses()
    federation.callbacks.append(statuses)
    federation.run()
    turns, taken = federation.callbacks[0], set()
    for turn, rows in zip(turns, statuses[1:], strict=True):
        for client, order in turn.orders.items():
            steps = 15 if order.work_fraction == 1 else max(1, round(15 * order.work_fraction))
            assert rows[client]["num_steps"] == steps
            taken.add(steps)
    assert len(taken) > 1


def test_learning_rates_are_those_of_the_download(make):
    federation = make([4] * 6, 4, rounds=12, make_pace=fedbuff(1), devices=uneven)
    plain = federation.plans
    federation.plans = lambda r, history: plain(r, history)._replace(lr=0.1 * (r == 1))
    weights = Weights()
    federation.callbacks.append(weights)
    federation.run()
    turns = federation.callbacks[0]
    for turn, before, after in zip(turns, weights[:-1], weights[1:], strict=True):
        (order,) = turn.orders.values()
        moved = order.version.plan.round_idx == 1
        assert (abs(after - before).max() > 0) == moved


def test_client_states_are_written_at_arrival(make):
    algorithm = ditto(lam=0.1, weighting="samples")
    options = {"make_pace": fedbuff(2), "devices": uneven, "algorithm": algorithm}
    federation = make(SIZES, 3, rounds=1, **options)
    federation.run()
    states = federation.engine.site.states
    (turns,) = federation.callbacks
    known = {k for k in range(8) if states.get(k) is not None}
    assert known == set(turns[0].cohort.clients.tolist())


@pytest.mark.parametrize("mixes", others_slow([False, True], [True]))
def test_scaffolds_control_variate_stays_the_mean_of_the_clients(make, mixes):
    """Also where changes of the model are discounted: it counts what clients keep."""
    algorithm = scaffold(
        server_lr=1.0, momentum=0.0, nesterov=False, local_optimizer_state="reset"
    )
    pace = fedasync(0.6) if mixes else fedbuff(2)
    options = {"make_pace": pace, "devices": uneven, "algorithm": algorithm}
    federation = make(SIZES, 5, rounds=40, **options)
    federation.run()
    assert max(row["clock/staleness_max"] for row in federation.history[1:]) > 0
    states = federation.engine.site.states
    kept = [states.get(k)["control"]["weight"] for k in range(8) if states.get(k) is not None]
    control = federation.server["control"]["weight"]
    assert control.abs().max() > 0.01
    torch.testing.assert_close(control, sum(kept) / 8, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "word"),
    [
        (lambda _: mime(beta=0.9, weighting="samples"), "rounds"),
        (lambda initial: fedproto(lam=1.0, head=None, initial=initial), "changes"),
        (lambda initial: fedamp(alpha=1.0, lam=1.0, sigma=1.0, initial=initial), "rounds"),
    ],
)
def test_what_needs_rounds_is_refused(make, algorithm, word):
    federation = make(SIZES, 3, make_pace=fedbuff(2), algorithm=algorithm)
    pace = federation.pace.capabilities
    found = capabilities_of(federation.algorithm, federation.initial)
    assert word in {*found.needs & pace.breaks.keys(), *pace.needs & found.breaks.keys()}


def test_models_are_not_mixed_where_the_server_keeps_a_sum_of_changes(make):
    federation = make(SIZES, 3, make_pace=fedasync(0.5), algorithm=feddyn(alpha=0.1))
    found = capabilities_of(federation.algorithm, federation.initial).breaks
    assert federation.pace.capabilities.needs & found.keys() == {"changes that mix"}
    assert not UNROUNDED.needs & found.keys()


def test_a_buffer_of_everybody_is_said(make, caplog):
    make(SIZES, 8, make_pace=fedbuff(8)).run()
    assert "pace.buffer=8 is the whole population" in caplog.text


def test_a_buffer_larger_than_the_clients_at_work_is_refused(make):
    with pytest.raises(ValueError, match=r"pace\.buffer=4: only 3 clients .*allowed: 1 to 3"):
        make(SIZES, 3, make_pace=fedbuff(4)).run()


@pytest.mark.parametrize("sampler", [poisson, cyclic])
def test_samplers_of_whole_cohorts_are_refused(make_data, sampler):
    sampling = Sampling(partial(sampler, fraction=0.5), make_data([3, 3]), seed=0, rounds=1)
    assert sampling.capabilities.breaks.keys() == UNROUNDED.needs & {"single clients"}


def test_nobody_lists_the_population(make):
    def equal(clients):
        same, free = np.ones(len(clients)), np.full(len(clients), np.inf)
        assert len(clients) <= 20
        return Devices(same, 0 * same, free, free, same, 0 * same, 0 * same)

    federation = make(SIZES * 20, 20, rounds=3, make_pace=fedbuff(10), devices=equal)
    federation.run()
    assert federation.history[-1]["clock/in_flight"] <= 20
