"""Which keys a resumed run may change."""

import copy
import json

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from flfast.checkpoints.compatibility import check_same_experiment, differences, digest
from flfast.checkpoints.folders import FORMAT, BrokenCheckpointError, read_checkpoint
from flfast.train import CONF


@pytest.fixture(scope="module")
def configs():
    """Composes as the command line would, into plain values."""
    known = {}

    def composed(*overrides):
        if overrides not in known:
            with initialize_config_dir(version_base="1.3", config_dir=CONF):
                config = compose("config", ["logger=none", *overrides])
            known[overrides] = OmegaConf.to_container(config, resolve=True)
        return copy.deepcopy(known[overrides])

    return composed


@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy=ddp", "trainer.devices=2", "trainer.accelerator=cpu"),
        ("engine=eager", "threads=2", "loader.num_workers=1", "micro_batch=8"),
        ("callbacks=none", "checkpoint.every=3", "resume=auto", "eval_every=5"),
        ("trainer.precision=bf16-mixed", "client_states=disk", "trainer.profiler=simple"),
        ("rounds=50",),
    ],
    ids=" ".join,
)
def test_hardware_and_what_is_shown_may_change(configs, overrides):
    before, now = configs(), configs(*overrides)
    assert differences(before, now) == []
    assert digest(before) == digest(now)
    check_same_experiment(before, now, done=3)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=1", "seed: 0 -> 1"),
        ("optimizer.lr=0.5", "optimizer.lr: 0.05 -> 0.5"),
        ("partition.alpha=9", "partition.alpha: "),
        ("algorithm=fedprox", "algorithm.mu: not set -> "),
        ("model.hidden=[3]", "model.hidden: [200, 200] -> [3]"),
        ("trainer.gradient_clip_val=1", "trainer.gradient_clip_val: null -> 1"),
        ("trainer.accumulate_grad_batches=2", "trainer.accumulate_grad_batches: 1 -> 2"),
        ("sampler.fraction=0.5", "sampler.fraction: 1.0 -> 0.5"),
        ("batch_size=3", "batch_size: 10 -> 3"),
        ("bn=frozen", 'bn: "aggregate" -> "frozen"'),
        ("split.val=0.2", "split.val: 0.1 -> 0.2"),
        ("schedule=growing_batch", "schedule.phases.0: not set -> "),
    ],
)
def test_everything_else_is_refused_with_what_it_was(configs, override, said):
    before, now = configs(), configs(override)
    assert digest(before) != digest(now)
    with pytest.raises(ValueError, match="is another experiment") as error:
        check_same_experiment(before, now, done=1)
    assert said in str(error.value)


def test_rounds_may_not_fall_below_what_is_done(configs):
    check_same_experiment(configs(), configs("rounds=7"), done=7)
    with pytest.raises(ValueError, match="rounds=6: the checkpoint is of round 7; allowed: >= 7"):
        check_same_experiment(configs(), configs("rounds=6"), done=7)


def test_a_learning_rate_that_follows_the_rounds_has_to_be_kept(configs):
    before = configs("lr_schedule=cosine", "rounds=9")
    with pytest.raises(ValueError, match=r"T_max: 9 -> 12") as error:
        check_same_experiment(before, configs("lr_schedule=cosine", "rounds=12"), done=9)
    assert "set options that depend on rounds=12 to their previous values" in str(error.value)
    kept = configs("lr_schedule=cosine", "rounds=12", "lr_schedule.scheduler.T_max=9")
    check_same_experiment(before, kept, done=9)


NOISE = ("privacy.epsilon=null", "privacy.noise_multiplier=1")


@pytest.mark.parametrize(
    "words",
    [
        ("privacy=central",),
        ("privacy=local",),
        ("privacy=dp_ftrl", "privacy.mechanism=banded", *NOISE),
    ],
    ids=" ".join,
)
def test_noise_for_all_rounds_fixes_the_rounds(configs, words):
    """Rounds that were done had less noise than a longer run needs for its epsilon."""
    before = configs(*words, "rounds=9")
    check_same_experiment(before, configs(*words, "rounds=9"), done=5)
    with pytest.raises(ValueError, match=r"rounds: 9 -> 12\n  the noise of privacy is for all"):
        check_same_experiment(before, configs(*words, "rounds=12"), done=9)
    given = ("privacy=central", *NOISE)
    check_same_experiment(configs(*given, "rounds=9"), configs(*given, "rounds=12"), done=9)


def test_phases_that_count_from_the_end_move_with_the_rounds(configs):
    def phase(start, rounds):
        phases = f"schedule.phases=[{{from: {start}, overrides: ['batch_size=5']}}]"
        return configs(phases, f"rounds={rounds}")

    assert differences(phase(-1, 9), phase(9, 12)) == []
    assert differences(phase(-1, 9), phase(-1, 12)) != []


PHASES = (
    ["batch_size=5"],
    ["strategy=ddp", "trainer.devices=2", "trainer.precision=bf16-mixed", "batch_size=5"],
    ["++strategy.shard=batch", "micro_batch=8", "strategy.timeout_s=9", "batch_size=5"],
)


def in_phases(configs, *phases, rounds=9):
    listed = ", ".join(f"{{from: {start}, overrides: {words}}}" for start, words in phases)
    return configs(f"schedule.phases=[{listed}]", f"rounds={rounds}")


@pytest.mark.parametrize("before", PHASES, ids=len)
@pytest.mark.parametrize("now", PHASES, ids=len)
def test_hardware_of_phases_may_change_as_any_other(configs, before, now):
    before, now = in_phases(configs, (3, before)), in_phases(configs, (3, now))
    check_same_experiment(before, now, done=5)
    assert digest(before) == digest(now)


def test_phases_of_hardware_only_may_come_and_go(configs):
    two = ["strategy=ddp", "trainer.devices=2"]
    assert differences(configs("rounds=9"), in_phases(configs, (4, two), (-1, two))) == []
    # Each phase begins with the command line: what the one before had changed is as it was.
    before = in_phases(configs, (3, PHASES[0]))
    assert differences(before, in_phases(configs, (3, PHASES[0]), (5, PHASES[2]))) == []
    assert differences(before, in_phases(configs, (3, PHASES[0]), (5, two))) != []


@pytest.mark.parametrize(
    "words",
    [
        ["batch_size=6", "trainer.devices=2"],
        ["batch_size=5", "optimizer.lr=1.0"],
        ["batch_size=5", "trainer.gradient_clip_val=1"],
        ["batch_size=5", "trainer=default"],
        ["trainer.devices=2"],
    ],
    ids=" ".join,
)
def test_fixed_settings_of_phases_may_not(configs, words):
    with pytest.raises(ValueError, match=r"schedule.phases.0: .*batch_size=5.* -> ") as error:
        check_same_experiment(
            in_phases(configs, (3, PHASES[1])), in_phases(configs, (3, words)), done=1
        )
    assert "devices" not in str(error.value)


def test_evaluations_that_a_schedule_counts_are_fixed(configs):
    fixed = differences(configs("schedule=adaptive"), configs("schedule=adaptive", "eval_every=2"))
    assert fixed == ["eval_every: 1 -> 2"]


def test_a_checkpoint_that_does_not_say_what_it_is_is_broken(tmp_path):
    path = tmp_path / "round-000001"
    path.mkdir()
    (path / "about.json").write_text(json.dumps({"format": FORMAT, "files": {}}))
    with pytest.raises(BrokenCheckpointError, match="lacks round, tables, world_size"):
        read_checkpoint(path)
