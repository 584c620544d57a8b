"""Clients that are trained together arrive where each does alone."""

import re
from functools import partial

import pytest
import torch
from engine_runs import assert_engines_agree, engine_of, mlp, net, with_batchnorm
from sampling import others_slow
from torch import nn

from flfast.algorithms.contract.downloads import OwnDownloads
from flfast.algorithms.fedprox import fedprox
from flfast.algorithms.kit.local_optimizer import keep_optimizer
from flfast.datamodules.transforms import BatchTransform
from flfast.engines.auto import AutoTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching, RoundPlan
from flfast.state.tree import tree_map

DOUBLE = {"precision": "64-true"}
EPOCHS = {"local_epochs": 2}
STEPS = {"local_epochs": None, "local_steps": 5}


RAGGED = {
    "sgd": (3, torch.optim.SGD, {"batching": Batching(4), **EPOCHS}, mlp),
    "full-batch": (9, torch.optim.SGD, {"batching": Batching(-1), **EPOCHS}, mlp),
    "adam": (
        9,
        torch.optim.Adam,
        {"batching": Batching(4, last_batch="pad"), **STEPS},
        with_batchnorm,
    ),
    "adamw": (
        2,
        partial(torch.optim.AdamW, weight_decay=0.1),
        {"batching": Batching(-1), **STEPS},
        mlp,
    ),
    "nesterov": (
        9,
        partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.1),
        {"batching": Batching(4, drop_single=True), **EPOCHS},
        with_batchnorm,
    ),
}


# All executors only in the slow tests: those of graphs compare them operator by operator.
@pytest.mark.parametrize("name", others_slow(RAGGED, ["sgd"]))
def test_ragged_clients_in_stacks(make_data, make_federation, name):
    assert_ragged_clients_agree(make_data, make_federation, name)


@pytest.mark.slow
@pytest.mark.usefixtures("each_executor")
@pytest.mark.parametrize("name", RAGGED)
def test_ragged_clients_in_stacks_with_each_executor(make_data, make_federation, name):
    assert_ragged_clients_agree(make_data, make_federation, name)


def assert_ragged_clients_agree(make_data, make_federation, name):
    stack, optimizer, options, model = RAGGED[name]

    def make():
        return make_federation(
            make_data([9, 14, 3, 26, 7]),
            model(),
            optimizer=optimizer,
            trainer=DOUBLE,
            **options,
        )

    assert_engines_agree(make, stack=stack)


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_stacked_clients_keep_their_own_states(make_data, make_federation, fraction):
    def make():
        return make_federation(
            make_data([9, 14, 3, 9, 14]),
            mlp(),
            algorithm=keep_optimizer(fedprox(mu=0.5, weighting="samples")),
            optimizer=torch.optim.Adam,
            trainer={**DOUBLE, "gradient_clip_val": 0.1},
            sampling={"fraction": fraction},
            rounds=3,
        )

    assert_engines_agree(make, stack=3)


def test_stacked_clients_draw_their_own_augmentations(make_data, make_federation):
    def make():
        transform = BatchTransform(random_crop=1, random_flip=True)
        data = make_data([9, 14, 3], features=(1, 4, 4), transform=transform)
        model = net(nn.Flatten, lambda: nn.Linear(16, 3))
        return make_federation(data, model, trainer=DOUBLE, batching=Batching(4), rounds=2)

    assert_engines_agree(make, stack=3)


def test_stacked_clients_draw_masks_of_their_own(make_data, make_federation):
    """Clients with the same one example, whose weights differ by their masks only."""
    data = make_data([1] * 64, features=(5,))
    data.examples.inputs[:] = 1.0
    data.examples.targets[:] = 0
    engine = engine_of(
        make_federation(data, net(lambda: nn.Dropout(0.5), lambda: nn.Linear(5, 3))),
        FusedTraining,
        stack=64,
    )
    weights = {"params": dict(engine.site.model.named_parameters()), "buffers": {}}
    found = []
    plan = RoundPlan(1, 0, 0.1, Batching(1), 1, None, "single", "clients", "cpu", "32-true")
    broadcast = tree_map(torch.Tensor.detach, weights)
    downloads = OwnDownloads(dict.fromkeys(range(64), broadcast))
    engine.training.train(list(range(64)), downloads, plan, found.extend)
    moved = torch.stack([r.done.weights["params"]["1.weight"][0] for r in found])
    moved = (moved - broadcast["params"]["1.weight"][0]).abs() > 0
    assert 0.35 < moved.double().mean() < 0.65
    assert len({tuple(row.tolist()) for row in moved}) > 16


UNSTACKABLE = [
    (Batching(2, accumulate=3), "micro_batch and trainer.accumulate_grad_batches cut"),
    (Batching(4, micro_batch=2), "micro_batch and trainer.accumulate_grad_batches cut"),
    (Batching(4), "the model cannot be stacked: "),
]
REFUSALS = [(engine, *case) for engine in (FusedTraining, AutoTraining) for case in UNSTACKABLE]


@pytest.mark.parametrize(("engine", "batching", "reason"), others_slow(REFUSALS, REFUSALS[3:4]))
def test_what_cannot_be_stacked_is_refused_where_a_number_is_given(
    make_data, make_federation, batching, reason, engine
):
    def make():
        return make_federation(make_data([6, 9]), mlp(Divided), batching=batching, trainer=DOUBLE)

    federation = make()
    with pytest.raises(ValueError, match=re.escape(f"engine.stack=2: {reason}")):
        engine_of(federation, engine, stack=2).choose(federation.plans(1, []))
    assert_engines_agree(make, engine=engine)


class Divided(nn.Module):
    """An operator that vmap takes client after client."""

    def forward(self, x):
        return x + torch.zeros_like(x).addcdiv_(x, torch.ones_like(x))
