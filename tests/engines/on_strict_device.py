"""Planted bugs, and what only the device of `strict_device.py` can show.

`test_strict_device.py` runs this file, with the plugin `strict_device`.
"""

from collections import OrderedDict
from functools import partial
from itertools import chain

import pytest
import torch
import torch.distributed as dist
from algorithms_by_name import SAMPLE, algorithm_of, federation_of
from engine_runs import Replaying, engine_of, mlp, ran
from strict_device import DEVICE, CopiesByRound, host_copies

from flfast.algorithms.fedprox import fedprox
from flfast.channel.reduction import MeanReduction
from flfast.distributed.world import World, reduce_mean, spec
from flfast.engines.auto import AutoTraining
from flfast.engines.eager import EagerTraining
from flfast.engines.evaluation import personal_models
from flfast.engines.fused.graph.update_rules import LocalOptimizer
from flfast.engines.fused.run import example_rows
from flfast.engines.fused.run.one_client import ClientProgram
from flfast.engines.fused.training import FusedTraining
from flfast.lit.local_module import LocalModule
from flfast.state import precision
from flfast.state.tree import WeightedMean, leaves, tree_map

MIXED = "Expected all tensors to be on the same device|found two different devices"


@pytest.fixture
def rounds(make_data, make_federation):
    """Train and evaluate with both engines, alone and in stacks, personal models included."""

    def rounds():
        def federation():
            return make_federation(
                make_data([9, 5, 3], num_test=4),
                mlp(),
                algorithm=fedprox(mu=0.5, weighting="samples"),
                optimizer=partial(torch.optim.SGD, momentum=0.9),
                rounds=2,
            )

        ways = (EagerTraining, 1), (FusedTraining, 1), (FusedTraining, 3), (Replaying, 3)
        found = [ran(federation(), engine, stack=stack) for engine, stack in ways]
        sizes = {"sizes": (9, 8), "split": (0.0, 0.3), "rounds": 2}
        personal = federation_of(make_data, make_federation, "fedproto", mlp(), **sizes)
        return [*found, ran(personal, EagerTraining)]

    return rounds


def mask_on_the_cpu(patch):
    """The weights of padded batches."""
    make = ClientProgram.__init__

    def made(self, *args):
        make(self, *args)
        self._loss_options["device"] = torch.device("cpu")

    patch.setattr(ClientProgram, "__init__", made)


def state_on_the_cpu(patch):
    """The momentum of local training."""
    empty = LocalOptimizer.empty
    on_cpu = partial(tree_map, torch.Tensor.cpu)
    patch.setattr(LocalOptimizer, "empty", lambda self, params: on_cpu(empty(self, params)))


def index_on_the_cpu(patch):
    """The indices of examples that are on the device."""
    patch.setattr(example_rows, "to_device", lambda values, device: torch.from_numpy(values))


def anchor_left_behind(patch):
    """The weights that FedProx pulls to."""
    patch.setattr(LocalModule, "_placed", lambda self, context, device: context)


def evaluated_weights_on_the_cpu(patch):
    """Weights of personal models that an algorithm predicts with."""
    patch.setattr(personal_models, "placed", lambda leaf, device: leaf)


PLANTED = [
    mask_on_the_cpu,
    state_on_the_cpu,
    index_on_the_cpu,
    anchor_left_behind,
    evaluated_weights_on_the_cpu,
]


def test_rounds_are_on_the_device(rounds):
    for federation in rounds():
        trainer = federation.engine.site.trainers.trainer(federation.plans(1, [])).trainer
        assert trainer.strategy.root_device == DEVICE


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_caught(rounds, monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises(RuntimeError, match=MIXED):
        rounds()


@pytest.fixture
def without_float64(monkeypatch):
    """The device has no double precision, as Apple's GPUs."""
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", {"strict"})
    torch.ops.strict.refuse_doubles(refuses=True)
    yield
    torch.ops.strict.refuse_doubles(refuses=False)


@pytest.mark.usefixtures("without_float64")
@pytest.mark.parametrize("name", [*SAMPLE, "ccvr", "fedfomo", "fedlc"])
def test_a_device_without_float64_trains_fused(make_data, make_federation, name):
    """Adam counts steps, measures add up sums, and algorithms read facts."""

    def run(engine):
        first, between, last = mlp()
        model = torch.nn.Sequential(OrderedDict(first=first, between=between, fc=last))
        algorithm = algorithm_of(name, model, num_clients=3)
        num_server = 6 if algorithm.server_calls else 0
        data = make_data([9, 8, 7], split=(0.0, 0.3), num_test=4, server_examples=num_server)
        options = {"algorithm": algorithm, "optimizer": torch.optim.Adam, "lr": 0.01}
        return ran(make_federation(data, model, rounds=2, **options), engine)

    fused, eager = run(AutoTraining), run(EagerTraining)
    assert fused.engine.choose(fused.plans(1, [])).split()[0] == "fused"
    torch.testing.assert_close(fused.server, eager.server, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("place", [torch.device("cpu"), DEVICE])
def test_sums_stay_where_they_are_and_are_reduced_over_nccl(monkeypatch, place):
    """The device has a backend of its own here, and another rank with the same uploads."""
    seen = []

    def all_reduce(values):
        seen.append(values.device)
        values.mul_(2)

    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,strict:nccl")
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    mean = WeightedMean()
    upload = {"w": torch.ones(3, device=place), "n": torch.tensor(5, device=place)}
    for weight in (1.0, 2.0):
        mean.add(upload, weight)
    reduced = reduce_mean(World(size=2, device=DEVICE), mean, spec(mean.like))
    assert seen == [DEVICE]
    assert reduced.weight == 6
    assert {leaf.device for leaf in leaves(reduced.total)} == {place}
    torch.testing.assert_close(reduced.result(), upload)


def test_the_engine_says_where_ranks_train(make_data, make_federation, monkeypatch):
    seen = []
    combine = MeanReduction.combine

    def spied(self, world, specs=None):
        seen.append(world.device)
        return combine(self, world, specs)

    monkeypatch.setattr(MeanReduction, "combine", spied)
    ran(make_federation(make_data([5, 4]), mlp()), EagerTraining)
    assert seen == [DEVICE]


def test_copies_to_the_host_are_counted():
    tensor = torch.ones(3, device=DEVICE)
    with host_copies() as found:
        tensor.cpu(), tensor.tolist(), bool(tensor.all())
        tensor.to(DEVICE), tensor + 1, torch.ones(3).to(DEVICE)
    tensor.cpu()
    assert [copy.num_bytes for copy in found] == [12, 12, 1]


@pytest.mark.parametrize("engine", [EagerTraining, FusedTraining])
def test_copies_to_the_host_are_counted_by_round_and_caller(make_data, make_federation, engine):
    copies = CopiesByRound()
    data = make_data([9, 5, 3], num_test=4)
    ran(make_federation(data, mlp(), rounds=2, callbacks=[copies]), engine)
    assert len(copies.trained) == len(copies.evaluated) == 2
    for copy in chain(*copies.trained, *copies.evaluated):
        assert any(name.startswith(("engines/", "lit/")) for name in copy.callers)


@pytest.mark.parametrize("stack", ["auto", 2])
def test_stacks_are_timed_once_on_a_device(make_data, make_federation, stack):
    """The federation then trains as on the CPU, and what was chosen can be stored."""
    federation = make_federation(make_data([9, 5, 3]), mlp(), rounds=2)
    federation.engine = engine_of(federation, AutoTraining, stack=stack)
    training, plan = federation.engine.training, federation.plans(1, [])
    with host_copies() as copies:
        assert federation.engine.choose(plan) == "fused"
    stacks = training._fused._decided["stacks"]
    assert [*map(len, stacks.values())] == [2]
    with host_copies() as again:
        federation.engine.choose(plan)
    assert len(again) < len(copies)
    federation.run()
    expected = ran(make_federation(make_data([9, 5, 3]), mlp(), rounds=2), EagerTraining)
    torch.testing.assert_close(federation.server, expected.server)
