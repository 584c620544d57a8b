"""Sharded models give the numbers of unsharded ones; ranks are real processes."""

from functools import partial

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, EarlyStopping
from sampling import others_slow
from tables import assert_same_numbers, rows
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adafactor, Adam

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.fedprox import fedprox
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.local_optimizer import average_optimizer, keep_optimizer
from flfast.algorithms.local import local
from flfast.distributed.sharding import check_shardable, shard
from flfast.lit.batchnorm import batchnorm_weights
from flfast.lit.local_module import LocalModule
from flfast.lit.strategies.fsdp import ShardedModule
from flfast.lit.task import LocalTask
from flfast.models.adapters.head import head
from flfast.models.adapters.lora import lora
from flfast.models.recomputed import recompute
from flfast.state.plan import Batching
from flfast.state.tree import sub, tree_map
from flfast.state.weights import read_weights, write_weights
from flfast.tasks.classification import CLASSIFICATION

FSDP = {"strategy": "fsdp"}
MOMENTUM = partial(SGD, momentum=0.9)
FEDAVG, FEDPROX = fedavg(weighting="samples"), fedprox(mu=0.5, weighting="samples")


def hinge(task, params, batch, _ctx):
    logits = task.logits(params, batch)
    return task.mean(F.multi_margin_loss(logits, batch.targets, reduction="none"))


HINGE = Algorithm("hinge", loss=hinge)


def made(*layers):
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    return nn.Sequential(*(make() for make in layers))


def mlp():
    return made(lambda: nn.Linear(5, 7), nn.Tanh, lambda: nn.Linear(7, 7), lambda: nn.Linear(7, 3))


def cnn():
    return made(
        lambda: nn.Conv2d(1, 3, 3, padding=1), nn.ReLU, nn.Flatten, lambda: nn.Linear(48, 3)
    )


def with_batchnorm():
    return made(lambda: nn.Linear(5, 8), lambda: nn.BatchNorm1d(8), lambda: nn.Linear(8, 3))


class Tied(nn.Module):
    """Tied layers, attention and a module list: parameters that must be gathered together."""

    def __init__(self):
        super().__init__()
        self.read, self.write = nn.Linear(5, 5), nn.Linear(5, 5)
        self.write.weight = self.read.weight
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(5, 1, 6, 0.0, batch_first=True)])
        self.attention = nn.MultiheadAttention(5, 1, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, inputs):
        hidden = self.layers[0](self.write(self.read(inputs).tanh()).unsqueeze(1))
        return self.head(self.attention(hidden, hidden, hidden)[0].squeeze(1))


def with_lora():
    model = mlp()
    options = {"rank": 2, "alpha": 4.0, "dropout": 0.0, "target_modules": None}
    lora(model, **options, train_bias=True, freeze_a=False, base_bits=None)
    return model


def with_head():
    """Its frozen base has tied weights, attention and BatchNorm, which has buffers."""
    model = nn.Sequential(tied(), nn.BatchNorm1d(3), nn.Linear(3, 3))
    head(model, layer="2")
    return model


def tied():
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    return Tied()


def recomputed():
    """Every block is a group of its own, has groups, or is part of one, by `group_params`."""
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    blocks = (nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)) for _ in range(2))
    model = nn.Sequential(*blocks, nn.Linear(5, 3))
    recompute(model, "auto")
    return model


@pytest.fixture
def outcome(make_data, make_federation):
    """Weights and metrics after a round of clients with unequal sizes."""

    def outcome(sizes=(5, 9, 1), model=mlp, world=None, features=(5,), **options):
        data = make_data(sizes, split=(0.2, 0.2), num_test=9, features=features)
        extra = {"world": world} if world else {}
        federation = make_federation(data, model(), **options | extra)
        federation.run()
        numbers = [
            {k: v for k, v in row.items() if "loss" in k or "accuracy" in k or "auc" in k}
            for row in federation.history
        ]
        weights = {name: w.float().numpy() for name, w in federation.weights().items()}
        return weights, numbers

    return outcome


def assert_equal(found, expected, tol=1e-5):
    for name, value in expected[0].items():
        np.testing.assert_allclose(found[0][name], value, rtol=tol, atol=tol / 10, err_msg=name)
    for row, expected_row in zip(found[1], expected[1], strict=True):
        assert row == pytest.approx(expected_row, rel=10 * tol, abs=tol, nan_ok=True)


CASES = {
    "momentum": {"batching": Batching(4), "optimizer": MOMENTUM, "local_epochs": 2},
    "adam": {"batching": Batching(4), "optimizer": partial(Adam, eps=1e-3), "lr": 0.01},
    "fedprox": {
        "batching": Batching(3),
        "algorithm": FEDPROX,
        "optimizer": MOMENTUM,
        "rounds": 2,
    },
    "fedprox-accumulated": {
        "batching": Batching(2, accumulate=2),
        "algorithm": FEDPROX,
        "local_epochs": 2,
    },
    "clipped": {
        "batching": Batching(3, accumulate=2),
        "trainer": {"gradient_clip_val": 0.05},
        "algorithm": FEDPROX,
        "local_epochs": 2,
    },
    "clipped-values": {
        "batching": Batching(3),
        "trainer": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    },
    "logits": {"batching": Batching(3, accumulate=2), "algorithm": HINGE, "local_epochs": 2},
    "full-batch": {"batching": Batching(-1, micro_batch=2), "algorithm": FEDPROX},
    "cnn": {"model": cnn, "features": (1, 4, 4), "batching": Batching(4), "optimizer": MOMENTUM},
    "cnn-fedprox": {
        "model": cnn,
        "features": (1, 4, 4),
        "batching": Batching(3, accumulate=2),
        "algorithm": FEDPROX,
        "optimizer": partial(Adam, eps=1e-3),
        "lr": 0.01,
    },
    "one-group": {"batching": Batching(4), "group_params": 10**6},
    "some-groups": {"batching": Batching(4), "group_params": 40},
    "tied": {"model": tied, "batching": Batching(4)},
    "recomputed": {"model": recomputed, "batching": Batching(4), "optimizer": MOMENTUM},
    "recomputed-blocks": {"model": recomputed, "batching": Batching(4), "group_params": 40},
    "recomputed-whole": {"model": recomputed, "batching": Batching(4), "group_params": 10**6},
    "validated": {
        "sizes": (6, 9),
        "batching": Batching(3),
        "local_epochs": 4,
        "trainer": {"limit_val_batches": 1.0, "callbacks": [EarlyStopping("val/loss", 9.0)]},
    },
    "limited": {"batching": Batching(3), "trainer": {"limit_test_batches": 2}},
    "double": {"batching": Batching(4), "trainer": {"precision": "64-true"}},
    "personal": {"batching": Batching(3), "algorithm": lambda w: local(initial=w), "rounds": 2},
    "averaged-optimizer": {
        "batching": Batching(3),
        "algorithm": average_optimizer(FEDAVG),
        "optimizer": MOMENTUM,
        "rounds": 2,
    },
    "lora": {"model": with_lora, "batching": Batching(4), "optimizer": MOMENTUM, "rounds": 2},
    "lora-fedprox": {
        "model": with_lora,
        "batching": Batching(3, accumulate=2),
        "algorithm": FEDPROX,
        "group_params": 40,
    },
    "lora-double": {
        "model": with_lora,
        "batching": Batching(4),
        "trainer": {"precision": "64-true"},
    },
    "head": {"model": with_head, "batching": Batching(4), "freeze_batchnorm": True},
    "kept-optimizer": {
        "batching": Batching(3),
        "algorithm": keep_optimizer(FEDPROX),
        "rounds": 2,
        "optimizer": partial(Adam, eps=1e-3),
        "lr": 0.01,
    },
}


# The cases that split and sum most. Three ranks are slow on few cores, so only these have them.
MOST = {"fedprox-accumulated", "clipped", "full-batch", "cnn-fedprox", "some-groups", "tied"}
OTHERS = tuple(name for name in CASES if name not in MOST or name in {"cnn-fedprox", "tied"})
WORLDS = [(2, ("clipped",)), (2, OTHERS), (3, tuple(sorted(MOST)))]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")
@pytest.mark.parametrize(("size", "names"), others_slow(WORLDS, WORLDS[:1]), ids=str)
def test_a_sharded_model_gives_the_numbers_of_an_unsharded_one(in_world, outcome, size, names):
    cases = {name: CASES[name] for name in names}
    results = in_world(
        size,
        lambda world: {
            name: outcome(**{**case, **FSDP}, world=world) for name, case in cases.items()
        },
    )
    for name, case in cases.items():
        expected = outcome(**case)
        for rank in range(size):
            assert_equal(results[rank][name], expected)


class RecordShards(Callback):
    """Records the rows of each parameter, gradient and momentum on this rank."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.rows = {
            name: [
                len(tensor.to_local())
                for tensor in (p, p.grad, pl_module.optimizer.state[p]["momentum_buffer"])
            ]
            for name, p in pl_module.params.items()
        }


def test_parameters_gradients_and_optimizer_states_are_sharded(in_world, outcome):
    def parts(world):
        watch = RecordShards()
        outcome(world=world, optimizer=MOMENTUM, trainer={"callbacks": [watch]}, **FSDP)
        return watch.rows

    first, second = in_world(2, parts).values()
    for name, whole in mlp().named_parameters():
        assert first[name] == [-(-len(whole) // 2)] * 3
        assert second[name] == [len(whole) // 2] * 3


def test_a_frozen_base_is_sharded_and_stays_as_it_is(in_world):
    def parts(world):
        module = LocalModule(with_lora(), FEDAVG, SGD, CLASSIFICATION)
        copy = ShardedModule(module, init_device_mesh("cpu", (world.size,)), group_params=1)
        own = {
            n: (p.to_local().numel(), p.requires_grad) for n, p in copy.model.named_parameters()
        }
        return own, sorted(copy.params), tree_map(torch.clone, copy.read())

    whole = with_lora()
    frozen = {name: b for name, b in whole.named_buffers() if "base_layer" in name}
    results = in_world(2, parts)
    for shard_of, names, weights in results.values():
        assert names == sorted(name for name, _ in whole.named_parameters())
        assert weights["params"].keys() == {*names}
        for name, leaf in frozen.items():
            held, trains = shard_of[name]
            assert not trains
            assert held < leaf.numel() or len(leaf) == 1
    for name, leaf in frozen.items():
        assert sum(found[0][name][0] for found in results.values()) == leaf.numel()


def test_batchnorm_under_every_policy(in_world, outcome):
    """Frozen BatchNorm is exact. Otherwise ranks normalise parts, and average the statistics."""
    case = {"model": with_batchnorm, "batching": Batching(6), "sizes": (10, 20), **FSDP}

    def run(world):
        own = batchnorm_weights(with_batchnorm(), read_weights(with_batchnorm()))
        return [
            outcome(**case, world=world, freeze_batchnorm=True),
            outcome(**case, world=world, recalibrate=True),
            outcome(**case, world=world, algorithm=keep_local(FEDAVG, own)),
        ]

    alone = outcome(**{**case, "strategy": "single"}, freeze_batchnorm=True)
    first, second = in_world(2, run).values()
    for left, right in zip(first, second, strict=True):
        assert_equal(left, right, tol=0.0)
        assert np.isfinite(list(left[0].values())[-1]).all()
    assert_equal(first[0], alone)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_low_precision_applies_to_shards(in_world, outcome, precision):
    options = {"batching": Batching(4), "algorithm": FEDPROX, "trainer": {"precision": precision}}
    found = in_world(2, lambda world: outcome(**options, **FSDP, world=world))
    assert_equal(found[0], outcome(**options), tol=0.05)


def test_groups_have_at_least_the_given_size(in_world):
    def groups(world):
        found = []
        for size in (1, 30, 10**6):
            model = tied()
            shard(model, init_device_mesh("cpu", (world.size,)), group_params=size)
            found.append([name for name, m in model.named_modules() if isinstance(m, FSDPModule)])
        return found

    smallest, medium, largest = in_world(2, groups)[0]
    # Tied layers, and modules that read their children's parameters, are never split.
    assert smallest == ["", "layers.0", "attention", "head"]
    assert medium == ["", "layers.0", "attention"]
    assert largest == [""]


def test_writing_to_shards_and_reading_back_restores_weights(in_world):
    def trip(world):
        model = mlp()
        wanted = tree_map(torch.rand_like, read_weights(model))
        shard(model, init_device_mesh("cpu", (world.size,)), group_params=1)
        write_weights(model, wanted)
        return sub(read_weights(model), wanted)

    for difference in in_world(3, trip)[0]["params"].values():
        assert not difference.any()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


def test_unshardable_models_and_optimizers_are_refused_before_training(in_world):
    cases = ((mlp(), LBFGS), (mlp(), Adafactor), (Scaled(), SGD), (mlp(), Adam))

    def message(model, optimizer):
        try:
            check_shardable(model, optimizer, lr=0.1, device=torch.device("cpu"))
        except ValueError as error:
            return str(error)
        return ""

    def messages(world):
        assert world.size == 2
        return [message(*case) for case in cases]

    lbfgs, adafactor, scalar, adam = in_world(2, messages)[0]
    for message in (lbfgs, adafactor):
        assert "with this optimizer" in message
        assert message.endswith("use another optimizer, a newer torch, or strategy=ddp")
    assert "parameter scale has shape [], and only dimensions can be sharded" in scalar
    assert adam == ""


CALLS = [LocalTask.__call__, LocalTask.fixed_logits]


@pytest.mark.parametrize("call", others_slow(CALLS, CALLS[1:]))
def test_an_objective_that_calls_the_model_with_other_parameters_is_refused(
    in_world, outcome, call
):
    distant = Algorithm(
        "distant", loss=lambda task, params, batch, ctx: call(task, ctx.start["params"], batch)
    )

    def message(world):
        try:
            outcome(algorithm=distant, world=world, **FSDP)
        except MisconfigurationException as error:
            return str(error)
        return ""

    assert "algorithm=distant computes its loss with parameters" in in_world(2, message)[0]


QUICK = ("experiment=quick", "rounds=3", "callbacks=none", "engine=eager", "trainer.devices=2")


@pytest.mark.slow
def test_phases_may_switch_between_sharded_and_unsharded_models(flfast_run):
    phases = (
        "schedule.phases=[{from: 2, overrides: ['strategy=fsdp']},"
        "{from: 3, overrides: ['strategy=ddp']}]"
    )
    mixed = rows(flfast_run(*QUICK, "strategy=single", phases, run_dir="mixed"))
    own = ("strategy=single", "trainer.devices=1")
    alone = rows(flfast_run(*QUICK, *own, run_dir="alone"))
    assert [row["plan/strategy"] for row in mixed[1:]] == ["single", "fsdp", "ddp/clients"]
    assert_same_numbers(mixed, alone)


def test_the_command_refuses_an_optimizer_that_cannot_be_sharded(flfast_run, capfd):
    lbfgs = ("optimizer=custom", "optimizer._target_=torch.optim.LBFGS")
    with pytest.raises(SystemExit):
        flfast_run(*QUICK, "strategy=fsdp", *lbfgs)
    assert "strategy=fsdp fails in torch" in capfd.readouterr().err
