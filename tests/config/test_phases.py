"""Phases: the same syntax as the command line, from a round on."""

import pytest
from sampling import others_slow
from tables import rows

from flfast.config.composition import compose, without_hydra
from flfast.config.implied import implied
from flfast.config.job import HydraJob
from flfast.config.phases import compose_phases
from flfast.federation.schedules.piecewise import scale_lr

QUICK = ("local_epochs=1", "sampler.fraction=0.3", "callbacks=none")


ADAPT = ((), ("schedule.adapt.patience=1", "schedule.adapt.metric=val/accuracy"))


def plans(folder):
    return [
        tuple(row[f"plan/{k}"] for k in ("strategy", "precision", "batch_size"))
        for row in rows(folder)[1:]
    ]


def phases(*parts):
    listed = ", ".join(
        f"{{from: {start}, overrides: [{', '.join(repr(o) for o in overrides)}]}}"
        for start, *overrides in parts
    )
    return f"schedule.phases=[{listed}]"


def test_a_run_changes_strategy_precision_and_batch_from_round_to_round(flfast_run):
    ddp = ("strategy=ddp", "trainer.devices=2")
    folder = flfast_run(
        "rounds=5",
        phases(
            (2, *ddp, "trainer.precision=bf16-mixed", "batch_size=50"),
            (3, "strategy=dp", "trainer.devices=2", "batch_size=50"),
            (4, *ddp, "strategy.shard=batch", "batch_size=-1", "micro_batch=32"),
            (-1, "optimizer.lr=0.01"),
        ),
        "model=logistic",
        *QUICK,
    )
    assert plans(folder) == [
        ("single", "32-true", "10"),
        ("ddp/clients", "bf16-mixed", "50"),
        ("dp", "32-true", "50"),
        ("ddp/batch", "32-true", "-1"),
        ("single", "32-true", "10"),
    ]


SCHEDULES = ("growing_batch", "warmup_then_large_batch", "adaptive", "precision_switch")


@pytest.mark.parametrize("schedule", others_slow(SCHEDULES, ["adaptive"]))
def test_ready_schedules_run(flfast_run, schedule):
    small = ("engine=eager", "model=logistic", "trainer.limit_train_batches=1")
    folder = flfast_run(
        "rounds=22", f"schedule={schedule}", *ADAPT[schedule == "adaptive"], *small, *QUICK
    )
    assert len(set(plans(folder))) > 1


def test_a_shorter_run_ends_before_a_late_phase(flfast_run):
    assert len(plans(flfast_run("rounds=2", "schedule=growing_batch", *QUICK))) == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=synthetic"], "data cannot change during a run; allowed: batch_size"),
        (["optimizer.momentum=0.9"], "optimizer cannot change"),
        (["batch_size=0"], "schedule.phases[0]: batch_size=0: must be greater"),
        (["batchsize=1"], "unknown key batchsize; did you mean batch_size?"),
    ],
)
def test_what_cannot_change_is_refused_before_training(flfast_run, capsys, overrides, message):
    with pytest.raises(SystemExit):
        flfast_run("rounds=3", phases((2, *overrides)), *QUICK)
    assert message in capsys.readouterr().err


def test_the_learning_rate_grows_with_the_batch():
    assert scale_lr(0.1, rule="linear", batch_size=40, base_batch_size=10) == pytest.approx(0.4)
    assert scale_lr(0.1, rule="sqrt", batch_size=40, base_batch_size=10) == pytest.approx(0.2)
    assert scale_lr(0.1, rule="none", batch_size=40, base_batch_size=10) == 0.1
    assert scale_lr(0.1, rule="linear", batch_size=-1, base_batch_size=10) == 0.1


@pytest.mark.parametrize(
    ("words", "phase", "found"),
    [
        ((), "local_steps=3", [(5, None), (None, 3)]),
        (("local_steps=3",), "local_epochs=2", [(None, 3), (2, None)]),
        (("local_steps=3",), "local_steps=4", [(None, 3), (None, 4)]),
        (("++local_steps=3",), "batch_size=5", [(None, 3), (None, 3)]),
        (("experiment=ifca_rotated_mnist", "local_epochs=1"), "batch_size=5", [(1, None)] * 2),
    ],
)
def test_epochs_or_steps_unset_each_other_wherever_they_are_set(words, phase, found):
    composed = compose([*words, *implied(words), "rounds=9", phases((2, phase))])
    composed.hydra.runtime.output_dir = "run"
    job = HydraJob.of(composed, without_hydra(composed.copy()))
    made = compose_phases(job.compose(()), job.compose)
    assert [(p.config.local_epochs, p.config.local_steps) for p in made] == found
