"""Modules of a plan's precision, and Trainers whose loops run once where nobody watches them."""

import lightning as L
import pytest
import torch
from engine_runs import mlp, ran
from lightning.pytorch.callbacks import Callback, LambdaCallback
from lightning.pytorch.profilers import SimpleProfiler
from sampling import others_slow, rotating
from torch import nn

from flfast.algorithms.ditto import ditto
from flfast.algorithms.fedavg import fedavg
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.lit.local_module import LocalModule
from flfast.lit.trainers import CohortModule, ReusedTrainer, overridden_hooks
from flfast.state.plan import Batching


class Rotated(nn.Module):
    """A linear layer whose inputs are rotated by a complex constant."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.register_buffer("rotation", torch.full((4,), 1j), persistent=False)

    def forward(self, inputs):
        return self.out((inputs.flatten(1) * self.rotation).imag.to(inputs.dtype))


def test_precision_keeps_the_imaginary_part_of_a_constant(make_data, make_federation):
    federation = make_federation(make_data([6]), Rotated())
    site, plan = federation.engine.site, federation.plans(1, [])
    module = site.trainers.module(plan._replace(precision="64-true"))
    assert module.model.out.weight.dtype == torch.float64
    assert module.model.rotation.imag.tolist() == [1.0] * 4


def model():
    torch.manual_seed(2)  # noqa: TID251 - a test's own model
    return nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.Tanh(), nn.Linear(6, 3)
    )


CASES = {
    "plain": {"batching": Batching(3, drop_single=True)},
    "frozen": {"freeze_batchnorm": True},
    "double": {"trainer": {"precision": "64-true"}},
    "bfloat16": {"trainer": {"precision": "bf16-mixed"}},
    "limited": {"trainer": {"limit_test_batches": 1}},
    "personal": {"algorithm": ditto(lam=0.1, weighting="samples")},
}


@pytest.mark.parametrize(
    ("name", "engine"), rotating(CASES, [EagerTraining, FusedTraining], every=4)
)
def test_steps_alone_give_the_numbers_of_whole_loops(
    make_data, make_federation, monkeypatch, name, engine
):
    def outcome(watched):
        monkeypatch.setattr(ReusedTrainer, "_steps_only", not watched)
        data = make_data((7, 6, 9), split=(0.2, 0.2), num_test=8)
        federation = make_federation(data, model(), rounds=3, **{**CASES["plain"], **CASES[name]})
        ran(federation, engine)
        rows = [
            {k: v for k, v in row.items() if not k.endswith(("_s", "per_s"))}
            for row in federation.history
        ]
        training = [module.training for module in federation.engine.site.model.modules()]
        return federation.weights(), [str(row) for row in rows], training

    (found, rows, training), (expected, *others) = outcome(watched=False), outcome(watched=True)
    assert [rows, training] == others
    assert all(torch.equal(found[name], leaf) for name, leaf in expected.items())


def test_steps_alone_round_targets_as_whole_loops(make_data, make_federation):
    targets = 1 + torch.arange(42.0).view(14, 3) / 1000  # some are equal in bfloat16
    data = make_data((5, 5), num_test=4, task="regression", targets=targets)
    federation = make_federation(
        data, nn.Linear(5, 3).bfloat16(), lr=0.0, rounds=3, trainer={"precision": "bf16-true"}
    )
    federation.run()
    first, *others = [row["global/loss"] for row in federation.history]
    assert others == [first] * 3  # the first pass is a whole loop


class Counts(Callback):
    """Counts evaluation passes and trained cohorts."""

    def __init__(self):
        self.tests = 0

    def on_test_epoch_end(self, trainer, pl_module):
        self.tests += 1


def test_callbacks_and_profilers_see_every_loop(make_data, make_federation):
    def run(**trainer):
        federation = make_federation(
            make_data((7, 6), num_test=5), mlp(), rounds=3, trainer=trainer
        )
        ran(federation, FusedTraining)
        return federation.engine.site.trainers

    watch, profiler = Counts(), SimpleProfiler()
    run(callbacks=[watch])
    assert watch.tests == 4
    run(profiler=profiler)
    assert len(profiler.recorded_durations["run_training_batch"]) >= 3


@pytest.mark.parametrize("name", others_slow(["fit", "test"], ["fit"]))
def test_callbacks_see_an_exception_of_any_round(make_data, make_federation, monkeypatch, name):
    def failing(self, *args):
        if len(federation.history) > 2:  # round 0 and 1 have whole loops
            raise ZeroDivisionError
        return step(self, *args)

    kind, method = {
        "fit": (CohortModule, "training_step"),
        "test": (LocalModule, "test_step"),
    }[name]
    step, seen = getattr(kind, method), []
    monkeypatch.setattr(kind, method, failing)
    watch = LambdaCallback(on_exception=lambda *args: seen.append(args[2]))
    federation = make_federation(
        make_data((7, 6), num_test=5), mlp(), rounds=4, trainer={"callbacks": [watch]}
    )
    with pytest.raises(ZeroDivisionError):
        ran(federation, FusedTraining)
    assert [type(error) for error in seen] == [ZeroDivisionError]


def test_hooks_of_a_callback_are_found_in_its_class_and_in_the_object():
    assert overridden_hooks(Callback()) == set()
    assert overridden_hooks(Counts()) == {"on_test_epoch_end"}
    assert overridden_hooks(LambdaCallback(on_fit_end=print)) == {"on_fit_end"}


def test_a_run_without_watchers_calls_each_loop_once(make_data, make_federation, monkeypatch):
    calls = {"fit": 0, "test": 0}
    trainers = set()

    def counted(name):
        def call(self, *args, **kwargs):
            trainers.add(self)
            calls[name] += 1
            return originals[name](self, *args, **kwargs)

        return call

    originals = {name: getattr(L.Trainer, name) for name in calls}
    for name in calls:
        monkeypatch.setattr(L.Trainer, name, counted(name))
    federation = make_federation(
        make_data((7, 6), num_test=5), mlp(), rounds=4, algorithm=fedavg(weighting="samples")
    )
    ran(federation, FusedTraining)
    assert calls == {"fit": len(trainers), "test": 1}
