"""The fused engine gives the numbers of the eager one, whatever the options."""

from functools import partial

import numpy as np
import pytest
import torch
from engine_runs import assert_engines_agree, engine_of, mlp, ran, with_batchnorm
from models_by_name import IMAGE, NAMES, SHAPES, TOKENS, make_inputs, make_model
from sampling import others_slow
from torch import nn

from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.local_optimizer import average_optimizer, keep_optimizer
from flfast.engines.auto import AutoTraining
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.federation.loop import DivergedError
from flfast.federation.samplers.cohort import Cohort
from flfast.lit.batchnorm import batchnorm_weights
from flfast.lit.channels_last import use_channels_last
from flfast.state.plan import Batching
from flfast.state.tree import leaves

LARGE = ("resnet18", "timm", "vgg11")
PATHS = [name for name in NAMES if name not in TOKENS]

DOUBLE = {"precision": "64-true"}
CLIPPED = [(0.05, "norm", 1), (0.05, "norm", 3), (0.01, "value", 3), (100.0, "norm", 1)]


@pytest.mark.parametrize(
    ("value", "kind", "accumulate"),
    others_slow(CLIPPED, CLIPPED[2:3]),
)
def test_gradients_are_clipped(make_data, make_federation, value, kind, accumulate):
    trainer = {**DOUBLE, "gradient_clip_val": value, "gradient_clip_algorithm": kind}
    batching = Batching(3, accumulate=accumulate)

    def make():
        return make_federation(
            make_data([7, 12]), mlp(), trainer=trainer, rounds=2, lr=0.3, batching=batching
        )

    assert_engines_agree(make, engine=AutoTraining)


@pytest.mark.parametrize("value", [0.0, None])
def test_no_clipping_is_no_clipping(make_data, make_federation, value):
    trainer = {**DOUBLE, "gradient_clip_val": value}
    assert_engines_agree(lambda: make_federation(make_data([7]), mlp(), trainer=trainer))


POLICIES = ["aggregate", "frozen", "local", "recalibrate"]


@pytest.mark.parametrize("policy", others_slow(POLICIES, POLICIES[:1]))
def test_batchnorm_policies(make_data, make_federation, policy):
    def local(initial):
        return keep_local(
            fedavg(weighting="samples"), batchnorm_weights(with_batchnorm(), initial)
        )

    def make():
        return make_federation(
            make_data([9, 14]),
            with_batchnorm(),
            algorithm=local if policy == "local" else None,
            freeze_batchnorm=policy == "frozen",
            recalibrate=policy == "recalibrate",
            batching=Batching(4, drop_single=policy != "frozen"),
            trainer=DOUBLE,
            rounds=2,
        )

    fused = assert_engines_agree(make, engine=AutoTraining)
    moved = not torch.equal(fused.server["buffers"]["2.running_mean"], torch.zeros(8).double())
    assert moved == (policy in {"aggregate", "recalibrate"})


def test_the_pooled_client_of_the_centralised_baseline(make_data, make_federation):
    def make():
        federation = make_federation(
            make_data([9, 14], pooled=True), mlp(), trainer=DOUBLE, rounds=3
        )
        federation.sampler = lambda num, rng: Cohort(np.array([0]), np.array([], dtype=int))
        return federation

    fused = assert_engines_agree(make)
    assert fused.history[-1]["train/loss"] < fused.history[1]["train/loss"]


@pytest.mark.parametrize(
    "wrap", others_slow([keep_optimizer, average_optimizer], [average_optimizer])
)
def test_a_learning_rate_of_zero_keeps_momentum(make_data, make_federation, wrap):
    def make():
        federation = make_federation(
            make_data([9, 14]),
            mlp(),
            algorithm=wrap(fedavg(weighting="samples")),
            optimizer=partial(torch.optim.SGD, momentum=0.9),
            trainer=DOUBLE,
            rounds=3,
        )
        plans = federation.plans
        federation.plans = lambda r, history: plans(r, history)._replace(lr=(0.1, 0.0, 0.1)[r - 1])
        return federation

    assert_engines_agree(make)


@pytest.mark.parametrize("engine", others_slow([EagerTraining, FusedTraining], [EagerTraining]))
def test_diverging_clients_are_left_out(make_data, make_federation, engine):
    data = make_data([6, 6])
    data.examples.inputs[data.train_clients.indices_of(1)] = float("nan")
    federation = ran(make_federation(data, mlp()), engine)
    assert federation.history[-1]["cohort/rejected"] == 1
    assert all(value.isfinite().all() for value in federation.weights().values())
    data.examples.inputs[:] = float("nan")
    with pytest.raises(DivergedError, match=r"all 2 clients diverged"):
        ran(make_federation(data, mlp()), engine)


def test_a_diverged_client_does_not_poison_the_next(make_data, make_federation):
    data = make_data([6, 6, 8])
    data.examples.inputs[data.train_clients.indices_of(0)] = float("nan")
    momentum = partial(torch.optim.SGD, momentum=0.9)

    def make():
        return make_federation(
            data, with_batchnorm(), optimizer=momentum, trainer=DOUBLE, rounds=2
        )

    assert_engines_agree(make)


class SeenSizes(nn.Module):
    """Notes how many examples a forward pass has in training."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def forward(self, x):
        if self.training:
            self.seen.add(len(x))
        return x


@pytest.mark.parametrize("micro_batch", others_slow([5, 8, 20], [8]))
def test_no_forward_pass_has_more_examples_than_a_micro_batch(
    make_data, make_federation, micro_batch
):
    sizes = SeenSizes()
    model = nn.Sequential(sizes, nn.Linear(5, 3))
    federation = make_federation(
        make_data([33, 50]), model, batching=Batching(-1, micro_batch=micro_batch)
    )
    ran(federation, FusedTraining)
    assert max(sizes.seen) == micro_batch


def test_dropout_draws_the_same_masks(make_data, make_federation):
    """A draw a step, of the size that the batch really has."""

    def make():
        model = mlp(lambda: nn.Dropout(0.5))
        batching = Batching(20, micro_batch=7)
        return make_federation(
            make_data([33, 8, 50]), model, batching=batching, local_epochs=2, lr=0.3, rounds=2
        )

    assert_engines_agree(make, tol=1e-5, engine=AutoTraining)


def test_dropout_is_reproducible(make_data, make_federation):
    def final(seed=0):
        model = mlp(lambda: nn.Dropout(0.5))
        federation = make_federation(make_data([8, 8], seed=seed), model, rounds=2)
        return ran(federation, FusedTraining).weights()

    torch.testing.assert_close(final(), final(), rtol=0, atol=0)


@pytest.mark.parametrize("name", others_slow(PATHS, ["logistic"]))
def test_every_model_trains_as_eagerly(make_data, make_federation, name):
    large = name in LARGE
    shape = (3, 8, 8) if name == "resnet18" else SHAPES.get(name, IMAGE)
    stacked = name == "resnet18" or not large
    sizes = [7, 10] if not large else [4, 4] if stacked else [4]

    def make():
        model = make_model(name, shape=shape)
        use_channels_last(model)
        return make_federation(
            make_data(sizes, features=shape, inputs=make_inputs(name, sum(sizes), shape=shape)),
            model,
            rounds=1 if large else 2,
            batching=Batching(2 if large else 4, drop_single=True, limit=2 if large else None),
            trainer={**DOUBLE, **({"limit_train_batches": 2} if large else {})},
            lr=0.01,
        )

    # Masks of dropout agree in distribution only.
    alone = not stacked or name == "pfl_cnn"
    assert_engines_agree(make, stack=1 if alone else 2)


def test_nothing_is_changed_that_others_hold(make_data, make_federation):
    federation = make_federation(
        make_data([6, 9]),
        mlp(),
        algorithm=keep_optimizer(fedavg(weighting="samples")),
        optimizer=partial(torch.optim.SGD, momentum=0.9),
    )
    engine = engine_of(federation, FusedTraining)
    inputs = federation.engine.site.data.examples.inputs.clone()
    server = federation.algorithm.server_state(federation.initial)
    held = [leaf.clone() for leaf in leaves(server)]
    plan = federation.plans(1, [])
    first = engine.train(server, [0, 1], plan, on_client=lambda r: None)
    mean = [leaf.clone() for leaf in leaves(first.uploads.mean)]
    states = [leaf.clone() for k in (0, 1) for leaf in leaves(engine.site.states.get(k))]
    kept = [engine.site.states.get(k) for k in (0, 1)]
    engine.train(server, [1, 0], plan._replace(round_idx=2), on_client=lambda r: None)
    assert all(map(torch.equal, leaves(server), held))
    assert all(map(torch.equal, leaves(first.uploads.mean), mean))
    assert all(map(torch.equal, (leaf for own in kept for leaf in leaves(own)), states))
    assert torch.equal(federation.engine.site.data.examples.inputs, inputs)


class Centred(nn.Module):
    """Examples of a batch see each other, without any BatchNorm."""

    def forward(self, x):
        return x - x.mean(0, keepdim=True)


def test_held_tensors_that_are_no_weights_are_part_of_the_program(make_data, make_federation):
    class Encoded(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.linspace(-1, 1, 8), persistent=False)
            self.factor = torch.tensor([1.5])

        def forward(self, x):
            return x * self.factor + self.table

    assert_engines_agree(lambda: make_federation(make_data([6, 9]), mlp(Encoded)), tol=1e-6)


@pytest.mark.parametrize("engine", others_slow([FusedTraining, AutoTraining], [AutoTraining]))
def test_examples_that_see_each_other_are_never_padded(make_data, make_federation, engine):
    def make():
        batching = Batching(16)
        return make_federation(make_data([19, 29]), mlp(Centred), batching=batching)

    assert_engines_agree(make, tol=1e-5, engine=engine)
