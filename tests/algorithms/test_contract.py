"""Properties of every algorithm in conf/algorithm, with its options' defaults but for `SHORT`."""

from collections import OrderedDict
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from algorithms_by_name import NAMES, SAMPLE
from engine_runs import engine_of, ran
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from sampling import ZOO, others_slow
from torch import nn

from flfast.channel.aggregations.krum import multi_krum
from flfast.channel.attacks.sign_flip import sign_flip
from flfast.channel.channel import Channel
from flfast.channel.sides import ServerSide
from flfast.checkpoints.contents import check_history, check_server, check_states, first_states
from flfast.engines.auto import AutoTraining
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.federation.loop import DivergedError
from flfast.lit.trainers import dtype_of_precision
from flfast.setup.build_algorithm import build_algorithm
from flfast.state.plan import Batching
from flfast.state.tree import all_finite, leaves, tree_map
from flfast.state.vector import vector_sizes
from flfast.state.weights import read_weights

CONF = Path(__file__).parents[2] / "conf"
# Unequal sizes; BatchNorm refuses batches of one example.
SIZES = {"linear": (9, 1, 4, 6, 3), "mlp": (9, 1, 4, 6, 3), "own_batchnorm": (9, 4, 4, 6, 5)}
MODELS = {
    "linear": lambda: [("fc", nn.Linear(5, 3))],
    "mlp": lambda: [("fc1", nn.Linear(5, 6)), ("act", nn.Tanh()), ("fc", nn.Linear(6, 3))],
    "own_batchnorm": lambda: [
        ("fc1", nn.Linear(5, 6)),
        ("norm", nn.BatchNorm1d(6)),
        ("act", nn.Tanh()),
        ("fc", nn.Linear(6, 3)),
    ],
}
SLICES = {"depthfl", "fedex_lora", "fedrolex", "fjord", "flexlora", "flora", "heterofl", "hetlora"}
"""Their clients may have slices of the model, which bn=local refuses."""
# They split the model, so it needs more than one layer.
SPLIT = {
    "fedas",
    "fedbabu",
    "fedgc",
    "fedgh",
    "fednh",
    "fedpac",
    "fedpcl",
    "fedper",
    "fedrep",
    "lg_fedavg",
    "pfl_da",
}
# They train on the server with a whole model, which needs examples for it and refuses bn=local.
ON_SERVER = {"feddf": 6, "fedlaw": 6, "fedmd": 6}
# Its steps are as long for small gradients, which are rounded more, as for large ones.
ADAM = {"feddf", "fedlaw"}
# Differences of two losses, divided by a small distance. It refuses bn=local, too.
QUOTIENTS = {"fedkseed"}
# Rounds send fragments of different sizes in turn, and refuse bn=local.
FRAGMENTS = {"streaming_diloco"}
# On the fused engine, to test that NaN of one client does not spread to others in its stack.
STACKED = {"ditto", "scaffold"}
# Algorithms for which `engine=auto` chooses another engine than the fused one: "eager".
CHOSEN = {}


# Fewer steps on the server: with the defaults they would take most of the time.
SHORT = {
    "ccvr": {"num_virtual": 100},
    "feddf": {"server_steps": 10},
    "fedetf": {"cycles": 1, "cycle_epochs": 1, "beta": 3.0},  # 10 amplifies rounding 40-fold
    "fedgen": {"server_steps": 10},
    "fedlaw": {"server_steps": 10},
    "fedtgp": {"server_epochs": 3},
}


def smallest(name):
    return "mlp" if name in SPLIT else "linear"


PROBLEMS = [(name, problem) for name in NAMES for problem in (smallest(name), "own_batchnorm")]


@cache
def plain_config():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", ["algorithm=fedavg"])


@cache
def config_of(name, bn):
    """The config that Hydra composes for `algorithm=NAME`; the YAMLs have no defaults list."""
    config = plain_config().copy()
    algorithm = OmegaConf.load(CONF / "algorithm" / f"{name}.yaml")
    config.algorithm, config.bn = OmegaConf.merge(algorithm, SHORT.get(name, {})), bn
    return config


@pytest.fixture
def federation_of(make_data, make_federation):
    """Make a federation with partial participation, by algorithm and problem."""

    def federation_of(name, problem="mlp", precision="64-true", **options):
        torch.manual_seed(3)  # noqa: TID251 - a test's own model
        model = nn.Sequential(OrderedDict(MODELS[problem]())).to(dtype_of_precision(precision))
        num_server = ON_SERVER.get(name, 0)
        may_keep = not num_server and name not in SLICES | QUOTIENTS | FRAGMENTS
        bn = "local" if problem == "own_batchnorm" and may_keep else "aggregate"
        config = config_of(name, bn)
        sizes = SIZES[problem]
        federation = make_federation(
            make_data(sizes, split=(0.0, 0.3), server_examples=num_server),
            model,
            algorithm=build_algorithm(
                config,
                read_weights(model),
                model,
                num_clients=len(sizes),
                num_public=num_server,
                num_classes=3,
            ),
            trainer={"precision": precision},
            **{
                "batching": Batching(2, drop_single=problem == "own_batchnorm"),
                "rounds": 3,
                "eval_every": 3,
                "sampling": {"fraction": 0.8, "dropout": 0.3},
                **options,
            },
        )
        plans = federation.plans
        federation.plans = lambda r, h: plans(r, h)._replace(precision=precision)
        return federation

    return federation_of


def outcome(federation):
    """Server state, client states and rows of a run, without times."""
    states, records = federation.engine.site.states, federation.engine.site.records
    timed = ("time/", "plan/", "train/samples_per_s")
    rows = [
        {name: value for name, value in row.items() if not name.startswith(timed)}
        for row in federation.history
    ]
    return {
        "server": federation.server,
        "states": {k: states.get(k) for k in range(federation.population)},
        "records": {k: records.get(k) for k in range(federation.population)},
        "rows": rows,
    }


def assert_close(found, expected, tol):
    for part in ("server", "states", "records"):
        torch.testing.assert_close(found[part], expected[part], rtol=tol, atol=tol)
    rows = [pytest.approx(row, rel=max(tol, 1e-12), nan_ok=True) for row in expected["rows"]]
    assert found["rows"] == rows


def assert_can_be_resumed(federation):
    """The checks of a checkpoint accept the states of the run."""
    check_server(federation.server, federation.algorithm, federation.initial)
    check_history(federation.history, last=3)
    state, record = first_states(federation.algorithm, federation.initial)
    site = federation.engine.site
    stacks, records = (kept.state_dict()["stacks"] for kept in (site.states, site.records))
    assert bool(stacks) == federation.algorithm.stateful
    assert bool(records) == (federation.algorithm.record is not None)
    check_states(stacks, lambda _: state, candidates=range(5))
    check_states(records, lambda _: record, candidates=range(5))


# Plain, client states, several models of the server and of a client, slices, own statistics.
FAST = [
    *(("fedavg", "linear"), ("ifca", "linear"), ("ditto", "linear"), ("hetlora", "linear")),
    *(("fedrs", "own_batchnorm"), ("scaffold", "own_batchnorm")),
]


@pytest.mark.parametrize(("name", "problem"), others_slow(PROBLEMS, FAST))
def test_engines_agree_and_numbers_stay_finite(federation_of, name, problem):
    stack = "auto" if problem == "linear" else 1  # tracing stacks takes three times as long
    federation = ran(federation_of(name, problem), EagerTraining)
    eager = outcome(federation)
    auto = ran(federation_of(name, problem), AutoTraining, stack=stack)
    assert auto.engine.choose(auto.plans(1, [])).split()[0] == CHOSEN.get(name, "fused")
    fused = outcome(auto)
    assert_close(fused, eager, tol=1e-8)
    assert all_finite(fused["server"])
    assert_can_be_resumed(federation)


class NaNExamples:
    """Sets examples to NaN: of client 1 after round 1, of all clients after round 2."""

    def on_round_end(self, federation, row, clients):
        data, states = federation.data, federation.engine.site.states
        self.states = {k: tree_map(torch.clone, states.get(k) or {}) for k in range(5)}
        for k in {0: (), 1: (1,), 2: range(5)}[row["round"]]:
            data.examples.inputs[data.train_clients.indices_of(k)] = torch.nan


@pytest.mark.parametrize("name", others_slow(NAMES, SAMPLE))
def test_diverged_clients_are_rejected_counted_and_named_and_keep_their_states(
    federation_of, name, caplog
):
    callback = NaNExamples()
    federation = federation_of(name, smallest(name), sampling={}, rounds=3, callbacks=[callback])
    with pytest.raises(DivergedError, match="round 3: all 5 clients diverged"):
        ran(federation, FusedTraining if name in STACKED else EagerTraining)
    assert "round 2: clients [1] uploaded NaN or infinity" in caplog.text
    assert [row["cohort/rejected"] for row in federation.history[1:]] == [0, 1]
    states = {k: federation.engine.site.states.get(k) or {} for k in range(5)}
    torch.testing.assert_close(states, callback.states, rtol=0, atol=0)
    assert all(all_finite(tree) for tree in (federation.server, *states.values()))
    assert any(list(leaves(tree)) for tree in states.values()) == federation.algorithm.stateful


def trained_once(federation):
    server = federation.algorithm.server_state(federation.initial)
    plan = federation.plans(1, [])
    return federation.engine.train(server, range(5), plan, on_client=lambda report: None)


@pytest.mark.parametrize("name", others_slow(NAMES, SAMPLE))
def test_a_client_that_learns_nothing_uploads_zeros(federation_of, name, sent_uploads):
    trained_once(federation_of(name, smallest(name), lr=0.0))
    assert len(sent_uploads) == 5
    for value in (leaf for upload in sent_uploads for leaf in upload["params"].values()):
        torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", others_slow(NAMES, SAMPLE))
def test_every_algorithm_combines_with_attacks_and_robust_aggregation(federation_of, name):
    federation = federation_of(name, smallest(name))
    federation.engine.channel = Channel(
        aggregation=multi_krum(num_byzantine=1, num_selected=2),
        clip_norm=1.0,
        attack=sign_flip(fraction=0.2, scale=2.0),
        attackers=frozenset({1}),
    )
    trained = trained_once(federation)
    assert all_finite(trained.uploads.mean)
    compared = vector_sizes(trained.uploads.mean, federation.algorithm.counted).learned > 0
    assert sum(report.rejected for report in trained.reports) == (3 if compared else 0)


def single_leaves(tree, name):
    """Paths of the leaves in single precision."""
    if isinstance(tree, dict):
        return {path for key in tree for path in single_leaves(tree[key], f"{name}.{key}")}
    # torch.optim counts its steps in single precision.
    counts = name.endswith(".step")
    return {name} if tree.dtype == torch.float32 and not counts else set()


class SinglePrecision:
    """Finds the leaves in single precision of all that is sent, kept and measured."""

    def __init__(self):
        self.found = set()

    def look(self, **trees):
        self.found |= {path for name in trees for path in single_leaves(trees[name] or {}, name)}

    def decoded(self, decode):
        def looked(server, sender, sent):
            upload = decode(server, sender, sent)
            self.look(upload=upload)
            return upload

        return looked

    def trained(self, train):
        def looked(training, client_id, download, plan):
            result = train(training, client_id, download, plan)
            context, done = result.context, result.done
            for name in ("server", "client", "start", "facts", "measured"):
                self.look(**{f"context.{name}": getattr(context, name)})
            self.look(weights=done.weights, optimizer=done.optimizer)
            return result

        return looked

    def on_round_end(self, federation, row, clients):
        kept = federation.engine.site.kept._asdict()
        self.look(server=federation.server)
        for name, k in product(kept, range(federation.population)):
            self.look(**{name: kept[name].get(k)})


def movements(federation):
    """How far each model has moved from the initial weights, as one vector each."""
    algorithm, initial = federation.algorithm, federation.initial["params"]
    models = [federation.weights()] if algorithm.evaluate_server else []
    if algorithm.personal is not None:
        clients = range(federation.population)
        server = federation.server
        models += [federation.engine.personal_weights(server, k)["params"] for k in clients]
    return [
        torch.cat([(model[n].double() - initial[n].double()).flatten() for n in sorted(initial)])
        for model in models
    ]


@pytest.mark.parametrize("name", others_slow(NAMES, SAMPLE))
def test_precision_is_kept_everywhere_and_only_rounds(federation_of, name, monkeypatch):
    """A run in double precision has no leaf in single precision, and one in single agrees.

    The model is smooth: at a kink of ReLU, rounding decides between two gradients.
    """
    options = {"sampling": {}, "rounds": 2}
    found = movements(ran(federation_of(name, "mlp", "32-true", **options), EagerTraining))
    single = SinglePrecision()
    federation = federation_of(name, "mlp", callbacks=[single], **options)
    for owner, method, looked in (
        (ServerSide, "decode", single.decoded),
        (EagerTraining, "_train_client", single.trained),
    ):
        monkeypatch.setattr(owner, method, looked(getattr(owner, method)))
    expected = movements(ran(federation, EagerTraining))
    assert not single.found
    sizes = {row["comm/down_bytes"] for row in federation.history[1:]}
    assert len(sizes) == (2 if name in FRAGMENTS else 1)
    assert expected
    tol = 1e-4 if name in ADAM | QUOTIENTS else 1e-5
    for left, right in zip(found, expected, strict=True):
        assert (left - right).norm() <= tol * right.norm()


SPLITS = [
    (Batching(2, accumulate=3), "trainer.accumulate_grad_batches=3 cuts"),
    (Batching(6, micro_batch=2), "micro_batch=2 cuts"),
]


@pytest.mark.parametrize("name", others_slow(NAMES, SAMPLE))
def test_a_local_step_in_several_batches_is_that_of_one_or_is_refused(federation_of, name):
    def federation(batching):
        return federation_of(name, smallest(name), batching=batching, rounds=2)

    whole = federation(Batching(6))
    everybody = (whole.algorithm, *whole.algorithm.calls)
    splits = all(algorithm.splits_batches for algorithm in everybody)
    expected = outcome(ran(whole, EagerTraining)) if splits else None
    for batching, message in SPLITS:
        cut = federation(batching)
        if splits:
            assert_close(outcome(ran(cut, EagerTraining)), expected, tol=1e-9)
            continue
        for training in (EagerTraining, FusedTraining, AutoTraining):
            with pytest.raises(ValueError, match=f"needs whole batches, which .*{message}"):
                engine_of(cut, training).choose(cut.plans(1, []))


@pytest.mark.parametrize("names", others_slow([ZOO, NAMES], [ZOO]), ids=len)
def test_two_ranks_give_the_numbers_of_one(federation_of, in_world, names):
    def finals(**options):
        return {
            name: ran(
                federation_of(name, smallest(name), rounds=2, **options), EagerTraining
            ).server
            for name in names
        }

    expected = finals()
    for found in in_world(2, lambda world: finals(world=world, strategy="ddp")).values():
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
