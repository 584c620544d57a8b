"""The fused engine on a GPU: the numbers of the eager one there. `pytest -k gpu` runs these."""

from functools import partial

import pytest
import torch
from engine_runs import (
    OperatorByOperator,
    Replaying,
    assert_engines_agree,
    engine_of,
    mlp,
    net,
    ran,
    with_batchnorm,
)
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

from flfast.algorithms.fedprox import fedprox
from flfast.datamodules.transforms import BatchTransform
from flfast.engines.auto import AutoTraining
from flfast.engines.eager import EagerTraining
from flfast.state.plan import Batching

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
ON_GPU = {"accelerator": "gpu", "devices": [0], "precision": "64-true"}
FLOAT32 = {**ON_GPU, "precision": "32-true"}
PROMISED = {"ieee": 1e-5, "tf32": 1e-3, None: 1e-3}
"""By `trainer.fp32_precision`: how near the engines are, as docs/engines.md says."""
IMAGE = (1, 8, 8)


def cnn():
    return net(
        lambda: nn.Conv2d(1, 4, 3),
        nn.ReLU,
        lambda: nn.MaxPool2d(2),
        nn.Flatten,
        lambda: nn.Linear(36, 3),
    )


def with_arithmetic(federation, fp32_precision):
    """The federation, whose plans have a `trainer.fp32_precision`."""
    before = federation.plans

    def plans(*position):
        return before(*position)._replace(fp32_precision=fp32_precision)

    federation.plans = plans
    return federation


def with_dropout():
    return mlp(lambda: nn.Dropout(0.5))


@pytest.mark.parametrize("stack", [1, 3, 9, "auto"])
@pytest.mark.parametrize("model", [mlp, with_batchnorm, cnn])
@pytest.mark.parametrize(
    "optimizer", [partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam], ids=["sgd", "adam"]
)
def test_recorded_rounds_are_those_of_the_eager_engine(
    make_data, make_federation, stack, model, optimizer
):
    def make():
        return make_federation(
            make_data([9, 14, 3, 26, 7], features=IMAGE if model is cnn else (5,)),
            model(),
            algorithm=fedprox(mu=0.5, weighting="samples"),
            optimizer=optimizer,
            batching=Batching(4, drop_single=True),
            rounds=4,
            trainer=ON_GPU,
        )

    fused = assert_engines_agree(make, stack=stack, engine=Replaying, tol=1e-8)
    assert fused.engine.training.recordings() > 0


@pytest.mark.parametrize("stack", [1, 9])
@pytest.mark.parametrize("model", [mlp, with_batchnorm, cnn])
@pytest.mark.parametrize("fp32_precision", PROMISED)
def test_float32_keeps_what_its_arithmetic_promises(
    make_data, make_federation, stack, model, fp32_precision
):
    def make():
        federation = make_federation(
            make_data([9, 14, 3, 26, 7], features=IMAGE if model is cnn else (5,)),
            model(),
            optimizer=partial(torch.optim.SGD, momentum=0.9),
            batching=Batching(4, drop_single=True),
            lr=0.02,
            rounds=2,
            trainer=FLOAT32,
        )
        return with_arithmetic(federation, fp32_precision)

    tol = PROMISED[fp32_precision]
    fused = assert_engines_agree(make, stack=stack, engine=Replaying, tol=tol, loss_tol=tol)
    assert fused.engine.training.recordings() > 0


def test_ieee_gives_the_losses_of_the_cpu(make_data, make_federation):
    def losses(trainer, fp32_precision):
        data = make_data([9, 14, 3, 26, 7], features=IMAGE)
        federation = make_federation(data, cnn(), lr=0.02, rounds=2, trainer=trainer)
        federation = ran(with_arithmetic(federation, fp32_precision), Replaying)
        return [row["train/loss"] for row in federation.history[1:]]

    on_cpu = losses({"precision": "32-true"}, None)
    assert losses(FLOAT32, "ieee") == pytest.approx(on_cpu, rel=1e-4)


@pytest.mark.parametrize("batching", [Batching(-1), Batching(8, micro_batch=3)])
def test_full_and_micro_batches(make_data, make_federation, batching):
    def make():
        data = make_data([9, 14, 3])
        return make_federation(data, mlp(), batching=batching, rounds=5, trainer=ON_GPU)

    assert_engines_agree(make, engine=Replaying, tol=1e-8)


def test_augmented_bytes_are_gathered_on_the_device(make_data, make_federation):
    def make():
        pixels = torch.randint(0, 256, (26, 3, 8, 8), generator=torch.Generator().manual_seed(0))
        data = make_data(
            [9, 14, 3],
            features=(3, 8, 8),
            inputs=pixels.to(torch.uint8),
            transform=BatchTransform((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), 1, random_flip=True),
        )
        model = net(nn.Flatten, lambda: nn.Linear(192, 3))
        return make_federation(data, model, rounds=3, trainer=ON_GPU)

    fused = assert_engines_agree(make, stack=3, engine=Replaying, tol=1e-8)
    device = torch.device("cuda", 0)
    assert fused.engine.site.data.stored.on_device(device)[0].device == device


def test_recorded_dropout_draws_what_unrecorded_dropout_draws(make_data, make_federation):
    """So masks are a function of seed, round and client, whenever a run is resumed."""

    def final(engine):
        data = make_data([33, 8, 50])
        federation = make_federation(data, with_dropout(), rounds=4, trainer=ON_GPU)
        return ran(federation, engine, stack=1).weights()

    torch.testing.assert_close(final(Replaying), final(OperatorByOperator))


@pytest.mark.parametrize("stack", [1, 20])
def test_dropout_agrees_in_distribution(make_data, make_federation, stack):
    """The mean loss of many clients' steps, each with masks of its own."""

    def loss(engine):
        data = make_data([40] * 60)
        federation = make_federation(
            data, with_dropout(), rounds=2, lr=0.05, batching=Batching(4), trainer=ON_GPU
        )
        return ran(federation, engine, stack=stack).history[-1]["train/loss"]

    assert loss(Replaying) == pytest.approx(loss(EagerTraining), rel=0.05)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed", "bf16-true"])
def test_auto_goes_fused_in_every_precision(make_data, make_federation, precision):
    trainer = {**ON_GPU, "precision": precision}
    federation = make_federation(make_data([9, 14, 3]), mlp(), rounds=3, trainer=trainer)
    plan = federation.plans(1, [])._replace(precision=precision)
    assert engine_of(federation, AutoTraining).choose(plan) == "fused"
    assert ran(federation, AutoTraining).history[-1]["cohort/rejected"] == 0


@pytest.mark.parametrize("stack", [1, 3])
def test_recorded_loss_scales_are_those_of_lightning(make_data, make_federation, stack):
    """The first scale overflows, so that each client leaves out steps."""

    def final(engine):
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**21, growth_interval=4)
        plugin = MixedPrecision("16-mixed", "cuda", scaler)
        trainer = {"accelerator": "gpu", "devices": [0], "plugins": [plugin]}
        data = make_data([9, 14, 3])
        federation = make_federation(
            data, mlp(), rounds=3, local_epochs=3, batching=Batching(4), trainer=trainer
        )
        return ran(federation, engine, **({} if engine is EagerTraining else {"stack": stack}))

    fused, eager = final(Replaying), final(EagerTraining)
    torch.testing.assert_close(fused.weights(), eager.weights(), rtol=2e-3, atol=2e-3)
    assert fused.engine.training.recordings() > 0
