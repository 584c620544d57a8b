"""Which engine runs what, and why."""

from dataclasses import replace
from functools import partial

import lightning as L
import pytest
import torch
from engine_runs import chosen, engine_of, mlp
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from flfast.datamodules.fetching import Loading
from flfast.engines.auto import AutoTraining
from flfast.engines.engine import Engine
from flfast.engines.fused.training import FusedTraining
from flfast.lit.trainers import Trainers


def test_fused_is_the_default_where_it_can_be(make_data, make_federation):
    assert chosen(make_federation(make_data([6, 4]))) == "fused"


class Silent(Callback):
    def on_test_start(self, trainer, pl_module):
        pass


class Listening(Callback):
    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        pass


OBSTACLES = {
    "dp": ({"strategy": "dp"}, {}, "strategy=dp divides batches over devices"),
    "fast_dev_run": ({}, {"fast_dev_run": True}, "trainer.fast_dev_run is for single batches"),
    "limit_val_batches": ({}, {"limit_val_batches": 1.0}, "trainer.limit_val_batches validates"),
    "detect_anomaly": ({}, {"detect_anomaly": True}, "trainer.detect_anomaly watches autograd"),
    "early stopping": (
        {},
        {"callbacks": [EarlyStopping("val/loss")]},
        "the callback EarlyStopping has hooks within local training",
    ),
    "rates": (
        {},
        {"callbacks": [LearningRateMonitor()], "logger": True},
        "the callback LearningRateMonitor has hooks",
    ),
    "own hook": ({}, {"callbacks": [Listening()]}, "the callback Listening has hooks"),
    "optimizer": (
        {"optimizer": torch.optim.RMSprop},
        {},
        "optimizer RMSprop is implemented by torch.optim only",
    ),
    "option": (
        {"optimizer": partial(torch.optim.Adam, amsgrad=True)},
        {},
        "optimizer.amsgrad is implemented by torch.optim only",
    ),
}


@pytest.mark.filterwarnings("ignore:.*precision.*", "ignore:.*autocast.*", "ignore:.*AMP.*")
@pytest.mark.parametrize("case", OBSTACLES)
def test_eager_is_chosen_for_a_reason_that_fused_refuses(make_data, make_federation, case):
    options, trainer, message = OBSTACLES[case]
    federation = make_federation(make_data([6, 4]), trainer=trainer, **options)
    changes = {"precision": trainer.get("precision", "32-true")}
    found = chosen(federation, **changes)
    assert found.startswith(f"eager ({message}")
    with pytest.raises(ValueError, match=r"engine=fused: .*use engine=auto or engine=eager") as no:
        engine_of(federation, FusedTraining).choose(federation.plans(1, [])._replace(**changes))
    assert message in str(no.value)


def test_data_that_workers_read_are_for_eager(make_data, make_federation):
    loading = Loading(eval_batch_size=7, num_workers=1)
    found = chosen(make_federation(make_data([6, 4], loading=loading)))
    assert found == "eager (the data are read by workers)"


def test_callbacks_that_do_not_listen_to_steps_are_no_obstacle(make_data, make_federation):
    federation = make_federation(make_data([6]), trainer={"callbacks": [Silent()]})
    assert chosen(federation) == "fused"


def test_a_phase_may_be_fused_and_the_next_not(make_data, make_federation):
    federation = make_federation(make_data([6, 4]))
    own = federation.engine.site.trainers.make_trainer

    def make_trainer(plan):
        if plan.strategy == "dp":
            return L.Trainer(
                accelerator="cpu",
                devices=2,
                strategy="dp",
                logger=False,
                max_epochs=1,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                limit_val_batches=0,
            )
        return own(plan)

    site = federation.engine.site
    site = replace(site, trainers=Trainers(site.module, make_trainer))
    engine = Engine(site, AutoTraining(site, {}, stack="auto"))
    first = federation.plans(1, [])
    second = first._replace(phase=1, strategy="dp", round_idx=2)
    assert engine.choose(first) == "fused"
    assert engine.choose(second).startswith("eager (strategy=dp")
    for plan in (first, second, first._replace(round_idx=3)):
        trained = engine.train(federation.initial, [0, 1], plan, on_client=lambda report: None)
        assert len(trained.reports) == 2


def test_batches_divided_over_ranks_are_for_eager(make_data, make_federation, in_world):
    data = make_data([6, 4])

    def work(world):
        return [
            chosen(make_federation(data, strategy="ddp", shard=shard, world=world))
            for shard in ("batch", "clients")
        ]

    for batch, clients in in_world(2, work).values():
        assert batch.startswith("eager (strategy=ddp strategy.shard=batch divides")
        assert clients == "fused"


def test_the_command_refuses_before_training(flfast_run, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        flfast_run("callbacks=none", "engine=fused", "trainer.detect_anomaly=true")
    message = capsys.readouterr().err
    assert stop.value.code == 2
    assert "engine=fused: trainer.detect_anomaly watches autograd" in message
    assert "use engine=auto or engine=eager" in message
    assert "Traceback" not in message
    assert not (tmp_path / "run" / "model.pt").exists()


# --- models that a trace would get wrong ----------------------------------------------------


class Deciding(nn.Module):
    """A branch on values."""

    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Counting(nn.Module):
    """A number that lives in Python and changes the forward pass."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * (2.0 if self.calls % 2 else 0.5)


class Imprecise(nn.Module):
    """One per cent more where it is traced."""

    def forward(self, x):
        return x * (1.01 if isinstance(x, FakeTensor) else 1.0)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Deciding, "the model cannot be traced"),
        (Counting, "the model gives different numbers each time"),
        (Imprecise, "traced steps end at other weights"),
    ],
)
def test_models_that_are_more_than_operators_run_eagerly(
    make_data, make_federation, layer, reason
):
    def make():
        return make_federation(make_data([6, 9]), mlp(layer), trainer={"gradient_clip_val": 0.05})

    auto, eager = make(), make()
    auto.engine = engine_of(auto)
    assert auto.engine.choose(auto.plans(1, [])).startswith(f"eager ({reason}")
    with pytest.raises(ValueError, match=f"engine=fused: {reason}"):
        engine_of(make(), FusedTraining).choose(auto.plans(1, []))
    if layer is Deciding:  # the trial left nothing behind
        auto.run()
        eager.run()
        torch.testing.assert_close(auto.weights(), eager.weights(), rtol=0, atol=0)
