"""Evaluation of personal, fine-tuned and held-out models: against plain torch, in any world."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from algorithms_by_name import algorithm_of
from engine_runs import engine_of, mlp, with_batchnorm
from hypothesis import given
from hypothesis import strategies as st
from sampling import others_slow
from torch import nn
from torch.nn import functional as F

from flfast.algorithms.local import local
from flfast.datamodules.batches import Batch
from flfast.engines.auto import AutoTraining
from flfast.engines.eager import EagerTraining
from flfast.engines.evaluation import passes
from flfast.engines.evaluation.personal_models import PersonalModels
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.state.tree import leaves, part_of, tree_map
from flfast.state.weights import by_name, read_weights, write_weights
from flfast.tasks.classification import CLASSIFICATION

SIZES = [9, 14, 21, 9, 14, 21]  # few sizes, because the fused engine compiles each of them


def alone(weights):
    return local(initial=weights)


@pytest.fixture
def make(make_data, make_federation):
    """A federation with two held-out clients, fine-tuned for two epochs of one full batch."""

    def make(kind=EagerTraining, *, model=mlp, epochs=2, **options):
        data = make_data(SIZES, split=(0.2, 0.3, 2))
        options = {"batching": Batching(-1), "rounds": 2, **options}
        federation = make_federation(data, model(), **options)
        federation.engine = engine_of(federation, kind, finetune_epochs=epochs)
        return federation

    return make


def loss_after(weights, data, client, *, steps, lr=0.1):
    """A client's test loss after full-batch steps from given weights, in plain torch."""
    model = mlp()
    write_weights(model, weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def loss(split):
        indices = data.splits[split].indices_of(client)
        return F.cross_entropy(
            model(data.examples.inputs[indices]), data.examples.targets[indices]
        )

    for _ in range(steps):
        optimizer.zero_grad()
        loss("train").backward()
        optimizer.step()
    return loss("test").item()


TUNED = [
    (EagerTraining, None),
    (EagerTraining, alone),
    (FusedTraining, None),
    (AutoTraining, alone),
]


def loss_of(metrics, client):
    return metrics.values["loss"][metrics.groups.tolist().index(client)]


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    others_slow(TUNED, TUNED[1:3]),
)
def test_fine_tuned_models_equal_those_of_plain_torch(make, kind, algorithm):
    federation = make(kind, algorithm=algorithm)
    federation.run()
    data, engine = federation.data, federation.engine
    found = engine.evaluate(federation.server, federation.plans(3, []))
    for client in data.participants:
        start = engine.site.states.get(client)["own"] if algorithm else federation.server
        expected = loss_after(start, data, client, steps=2)
        assert loss_of(found["finetuned"], client) == pytest.approx(expected, rel=1e-5)
    for client in data.held_out:
        expected = loss_after(federation.server, data, client, steps=2)
        assert loss_of(found["new_finetuned"], client) == pytest.approx(expected, rel=1e-5)
        if not algorithm:
            expected = loss_after(federation.server, data, client, steps=0)
            assert loss_of(found["new"], client) == pytest.approx(expected, rel=1e-5)
    assert ("new" in found) == (algorithm is None), (
        "no shared model to evaluate on held-out clients"
    )


@pytest.mark.parametrize("kind", others_slow([EagerTraining, AutoTraining], [EagerTraining]))
def test_held_out_clients_never_train_and_appear_only_in_their_own_sets(make, kind):
    federation = make(kind, algorithm=alone)
    seen = []
    federation.callbacks = [Seen(seen)]
    federation.run()
    held_out = set(federation.data.held_out)
    assert len(held_out) == 2
    assert {client for clients in seen for client, row in clients.items() if row.get("status")}
    for clients in seen:
        for client, row in clients.items():
            views = {name.partition("/")[0] for name in row} - {"status", "num_examples"}
            if client in held_out:
                assert views == {"new_finetuned"}
            else:
                assert "new_finetuned" not in views
    assert all(federation.engine.site.states.get(client) is None for client in held_out)


class Seen:
    """Records the rows of clients."""

    def __init__(self, rows):
        self.rows = rows

    def on_round_end(self, federation, row, clients):
        self.rows.append(clients)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [None, alone])
def test_fine_tuning_changes_nothing_else(make, algorithm):
    plain, tuned = (make(FusedTraining, algorithm=algorithm, epochs=n) for n in (0, 3))
    for federation in (plain, tuned):
        federation.run()
    torch.testing.assert_close(plain.weights(), tuned.weights(), rtol=0, atol=0)
    assert repr(plain.engine.site.states.state_dict()) == repr(
        tuned.engine.site.states.state_dict()
    )
    for before, after in zip(plain.history, tuned.history, strict=True):
        measured = [name for name in before if not name.startswith(("time/", "train/samples"))]
        assert {name: after[name] for name in measured} == {n: before[n] for n in measured}
    assert "finetuned/accuracy_std" in tuned.history[0]


def test_splitting_a_pass_into_parts_changes_nothing(make, monkeypatch):
    federation = make(algorithm=alone)
    federation.run()
    whole = federation.engine.evaluate(federation.server, federation.plans(1, []))
    monkeypatch.setattr(passes, "PERSONAL_BYTES", 1)
    parts = federation.engine.evaluate(federation.server, federation.plans(1, []))
    assert repr(whole) == repr(parts)


PLACES = [("single", "clients"), ("ddp", "clients"), ("ddp", "batch"), ("fsdp", "clients")]
WORLDS = [*product((None, alone), PLACES)]
SAMPLE = WORLDS[1:2] + WORLDS[6:7]


@pytest.mark.parametrize("ways", others_slow([SAMPLE, WORLDS], [SAMPLE]), ids=len)
def test_any_world_measures_the_same(make, in_world, ways):
    def measured(world=None):
        found = {}
        for algorithm, (strategy, shard) in ways if world else product((None, alone), PLACES[:1]):
            options = {"world": world} if world else {}
            federation = make(
                algorithm=algorithm, strategy=strategy, shard=shard, rounds=1, **options
            )
            federation.run()
            row = federation.history[-1]
            found[algorithm is None, strategy, shard] = {
                name: value
                for name, value in row.items()
                if name.partition("/")[0] not in {"time", "plan", "train"}
            }
        return found

    expected = measured()
    for found in in_world(2, measured).values():
        for (shared, *_), row in found.items():
            assert row == pytest.approx(expected[shared, "single", "clients"], rel=1e-5)


def conv():
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    layers = [nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(12, 3))


@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=6),
    make_model=st.sampled_from([mlp, with_batchnorm, conv]),
)
def test_vmapped_predictions_equal_those_of_one_client_after_another(sizes, make_model):
    model = make_model().eval()
    rng = torch.Generator().manual_seed(sum(sizes))
    noisy = partial(tree_map, lambda x: x + torch.rand(x.shape, generator=rng).to(x.dtype))
    weights = {client: noisy(read_weights(model)) for client in range(len(sizes))}
    inputs = torch.randn(sum(sizes), 5, generator=rng)
    batch = Batch(inputs, torch.zeros(len(inputs)), owners=tuple(enumerate(sizes)))
    looped, vmapped = (
        PersonalModels(model, CLASSIFICATION, weights, vmapped=v)(batch) for v in (False, True)
    )
    torch.testing.assert_close(vmapped, looped, rtol=1e-6, atol=1e-6)


def test_a_model_that_vmap_does_not_support_predicts_client_by_client():
    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else -super().forward(x)

    model = Branching(5, 3)
    weights = {client: tree_map(lambda x: x + 1, read_weights(model)) for client in (3, 4)}
    batch = Batch(torch.randn(4, 5), torch.zeros(4), owners=((3, 2), (4, 2)))
    looped, vmapped = (
        PersonalModels(model, CLASSIFICATION, weights, vmapped=v)(batch) for v in (False, True)
    )
    torch.testing.assert_close(vmapped, looped)


def test_a_diverged_client_keeps_its_previous_state(make):
    federation = make(algorithm=alone, rounds=1, epochs=0)
    federation.run()
    engine = federation.engine
    victim = int(federation.data.participants[0])
    before = engine.site.states.get(victim)
    broken = engine.site.states.get(victim)
    next(leaves(broken["own"])).fill_(float("nan"))
    plan = federation.plans(1, [])
    engine.site.states.put(victim, broken)
    trained = engine.train(federation.server, [victim], plan, on_client=lambda report: None)
    assert [report.rejected for report in trained.reports] == [True]
    assert repr(engine.site.states.get(victim)) == repr(broken), "the previous state"
    engine.site.states.put(victim, before)
    trained = engine.train(federation.server, [victim], plan, on_client=lambda report: None)
    assert not trained.reports[0].rejected
    assert not np.array_equal(repr(engine.site.states.get(victim)), repr(before))


@pytest.mark.parametrize("name", ["fedproto", "fedcp"])
def test_fine_tuning_leaves_out_what_the_model_lacks(make, name):
    federation = make(algorithm=algorithm_of(name, mlp()))
    federation.run()
    found = federation.engine.evaluate(federation.server, federation.plans(2, []))
    for client in range(2):
        personal = federation.engine.personal_weights(federation.server, client)
        own = part_of(personal, read_weights(mlp()))
        assert len(by_name(personal)) > len(by_name(own))
        expected = loss_after(own, federation.data, client, steps=2)
        assert found["finetuned"].values["loss"][client] == pytest.approx(expected, rel=1e-5)
