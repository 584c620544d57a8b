"""What rounds do on the server's own examples, and what nobody sees of it."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from engine_runs import ran
from references import Reference, initial, vector
from sampling import others_slow

from flfast.algorithms.contract.algorithm import Algorithm, ServerCall
from flfast.algorithms.contract.client import LocalStage
from flfast.algorithms.contract.uploads import Part
from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.kit.measures import GRADIENT, mean_gradient
from flfast.channel.aggregations.krum import multi_krum
from flfast.channel.attacks.sign_flip import sign_flip
from flfast.channel.channel import Channel
from flfast.channel.faults.simulated import simulated
from flfast.engines.auto import AutoTraining
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.federation.loop import DivergedError
from flfast.federation.selections.power_of_choice import power_of_choice
from flfast.state.plan import Batching
from flfast.state.tree import add
from flfast.zoo.federation.selections.oort import Oort

SIZES, NUM_SERVER = (7, 3, 5), 9
PLAIN = ServerCall(name="training on the server")
OWN = {"steps": 4, "lr": 0.05, "batch_size": 2}


def first_the_clients(local=PLAIN, **options):
    """FedAvg whose model is trained further on the server."""

    def run(server, rnd):
        server = add(server, rnd.call(server).mean)
        return add(server, rnd.on_server(server, local, **options))

    return Algorithm(name="further", round=run, calls=(local,))


@pytest.fixture
def make(make_data, make_federation):
    def make(algorithm, *, num_server=NUM_SERVER, **options):
        return make_federation(
            make_data(SIZES, server_examples=num_server, split=(0.0, 0.2)),
            initial(5, 3),
            algorithm=algorithm,
            trainer={"precision": "64-true"},
            **{"rounds": 2, "batching": Batching(3), "local_epochs": 2, **options},
        )

    return make


ENGINES = (EagerTraining, FusedTraining, AutoTraining)


@pytest.mark.parametrize("engine", others_slow(ENGINES, ENGINES[:2]))
@pytest.mark.parametrize("options", [{}, OWN], ids=["as clients", "own"])
def test_the_server_trains_as_one_more_client(make, engine, options):
    federation = ran(make(first_the_clients(**options)), engine)
    w, data = vector(initial(5, 3).state_dict()), federation.data
    clients = Reference(data, 3, 2, 0.1)
    size, lr = options.get("batch_size", 3), options.get("lr", 0.1)
    server = Reference(data, size, 2, lr)
    for round_idx in (1, 2):
        models = [clients.sgd(k, round_idx, w) for k in range(3)]
        w = sum(clients.size(k) * m for k, m in enumerate(models)) / sum(
            map(clients.size, range(3))
        )
        steps = server.steps(3, round_idx)[: options.get("steps")]
        for step in steps:
            w = w - lr * server.gradient(w, step)
    found = vector(federation.weights())
    assert abs(found - w).max() < 1e-9


def test_an_optimizer_of_its_own_and_a_measure(make):
    """A call may have another optimizer than the clients, or none at all."""
    descend = replace(PLAIN, stages=(LocalStage(optimizer=torch.optim.Adam),))
    gradient = ServerCall(
        name="gradient on the server",
        facts=("examples",),
        stages=(GRADIENT,),
        finish=lambda done, ctx: ({"gradient": mean_gradient(ctx)}, {}),
        parts={"gradient": Part("rows")},
    )

    def run(server, rnd):
        first = rnd.on_server(server, gradient)["gradient"]
        after = rnd.on_server(server, descend, steps=1, lr=0.01, batch_size=-1)
        # The first step of Adam is its rate in the direction of the sign.
        for name, change in after["params"].items():
            torch.testing.assert_close(change, -0.01 * first[name].sign(), rtol=0, atol=1e-5)
        return add(server, rnd.call(server).mean)

    ran(make(Algorithm(name="two", round=run, calls=(descend, gradient))), FusedTraining)


def rows_of(federation):
    """Numbers of the rounds that do not depend on the model."""
    return [
        {k: v for k, v in row.items() if k.startswith(("comm/", "cohort/"))}
        for row in federation.history[1:]
    ]


class Clients:
    """Who reported, and whose rows there are."""

    def __init__(self):
        self.seen = set()

    def on_client_end(self, federation, report):
        self.seen.add(report.client_id)

    def on_round_end(self, federation, row, clients):
        self.seen |= clients.keys()


def test_no_table_and_no_sampler_knows_of_it(make):
    seen = Clients()
    federation = ran(make(first_the_clients(), callbacks=[seen]), EagerTraining)
    assert seen.seen == {0, 1, 2}
    assert federation.population == 3
    plain = ran(make(fedavg(weighting="samples")), EagerTraining)
    assert rows_of(federation) == rows_of(plain)
    sets = federation.engine.evaluate(federation.server, federation.plans(1, []))
    assert {len(metrics.num_examples) for name, metrics in sets.items() if name != "global"} == {3}


def test_nothing_happens_to_its_upload(make):
    """Attacks, lost uploads, clipping and robust rules are about what clients send."""
    lost = {"lost": 1.0, "broken": 0.0, "corruption": "any"}
    channel = Channel(
        aggregation=multi_krum(num_byzantine=1, num_selected=2),
        clip_norm=1e-6,
        attack=sign_flip(fraction=0.9, scale=9.0),
        attackers=frozenset(range(9)),
        faults=simulated(**lost),
    )
    found = []

    def run(server, rnd):
        found.append(rnd.on_server(server, PLAIN))
        return add(server, rnd.call(server).mean)

    algorithm = Algorithm(name="both", round=run, calls=(PLAIN,))
    for own in (Channel(), channel):
        federation = make(algorithm, rounds=1)
        federation.engine.channel = own
        ran(federation, EagerTraining)
    assert federation.history[-1]["cohort/dropped"] == 3
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


OORT = Oort(count=2, exploration=0.5, decay=1.0, min_exploration=0.5, cutoff=0.9, clip=0.9)
SELECTIONS = {
    "power_of_choice": partial(power_of_choice, count=2),
    "oort": partial(OORT, num_clients=3, seed=0),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_selection_hands_it_on(make, name):
    federation = ran(make(SELECTIONS[name](first_the_clients(**OWN))), EagerTraining)
    assert federation.history[-1]["cohort/clients"] == 2
    assert federation.algorithm.server_calls == (PLAIN,)


ON_RANKS = [("clients", AutoTraining), ("batch", EagerTraining)]


@pytest.mark.parametrize(("shard", "engine"), others_slow(ON_RANKS, ON_RANKS[1:]))
def test_every_rank_gets_what_one_rank_would(make, in_world, shard, engine):
    def trained(world=None):
        options = {} if world is None else {"world": world, "strategy": "ddp"}
        return ran(make(first_the_clients(**OWN), shard=shard, **options), engine).weights()

    expected = trained()
    for found in in_world(2, trained).values():
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_training_that_diverges_ends_the_run(make):
    federation = make(first_the_clients())
    data = federation.data
    data.examples.inputs[data.train_clients.indices_of(data.server)[0]] = torch.nan
    with pytest.raises(DivergedError, match="round 1: training on the server's examples diverged"):
        ran(federation, EagerTraining)


def test_the_server_has_no_client_state():
    stateful = ServerCall(name="remembering", client_state=lambda broadcast: {"n": torch.zeros(1)})
    with pytest.raises(ValueError, match="remembering has a client_state"):
        Algorithm(name="outer", calls=(stateful,))


def test_calls_have_names_of_their_own():
    """Engines find them by name."""
    with pytest.raises(ValueError, match="algorithm=outer: calls of one name: outer, one, one"):
        Algorithm(name="outer", calls=(Algorithm(name="one"), ServerCall("one")))


def test_a_call_that_the_algorithm_does_not_name_is_refused(make):
    forgotten = Algorithm(name="further", round=lambda server, rnd: rnd.call(server, PLAIN).mean)
    with pytest.raises(ValueError, match="algorithm=further: 'training on the server' is none"):
        ran(make(forgotten, rounds=1), EagerTraining)


def test_a_step_that_is_tried_says_what_it_may_read(make):
    """A key that only a later call broadcasts has to be in the server's state from the start."""

    def run(server, rnd):
        return add(server, rnd.call({**server, "mean": server["params"]}).mean)

    def correct(grads, _, ctx):
        return {name: grad + 0 * ctx.server["mean"][name] for name, grad in grads.items()}

    late = Algorithm(name="late", round=run, correct=correct, broadcast=lambda server: server)
    with pytest.raises(KeyError, match=r"mean, in a step .*before round 1.* params, buffers"):
        ran(make(late, rounds=1), AutoTraining)
    early = replace(late, server_state=lambda weights: {**weights, "mean": weights["params"]})
    assert len(ran(make(early, rounds=1), AutoTraining).history) == 2
