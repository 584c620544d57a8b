"""Runs that end before their last round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import rows, timeless

from flfast.checkpoints.folders import checkpoint_folders, read_checkpoint
from flfast.federation.stops import never, plateau, target

SMALL = ("experiment=quick", "callbacks=none", "model.hidden=[16]", "rounds=30")
VALUES = st.lists(st.floats(0, 1), max_size=20)


def history(values, metric="val/accuracy", every=1):
    """Rows of an untrained model, then of rounds of which every so many are evaluated."""
    found = [{"round": 0, metric: 99.0, "time/eval_s": 0.1}]
    for value in values:
        for place in range(every):
            measured = {metric: value, "time/eval_s": 0.1} if place == every - 1 else {}
            found.append({"round": len(found), **measured})
    return found


def ends(stop, values, **options):
    """Number of evaluations after which a run would end; None for none."""
    every = options.get("every", 1)
    for num in range(len(values) + 1):
        if stop(history(values, **options)[: 1 + num * every]):
            return num
    return None


@given(VALUES)
def test_by_default_a_run_does_not_end_early(values):
    assert ends(never(), values) is None


@given(VALUES, st.integers(1, 4), st.integers(1, 3))
def test_a_plateau_is_so_many_evaluations_after_the_best(values, patience, every):
    """As PFLlib's `-ab -tc`: the best is not among the last so many."""
    expected = None
    for num in range(1, len(values) + 1):
        best = values[:num].index(max(values[:num]))
        if num - 1 - best >= patience:
            expected = num
            break
    stop = plateau(metric="val/accuracy", patience=patience, min_change=0.0)
    assert ends(stop, values, every=every) == expected


def test_a_loss_should_fall_and_small_changes_do_not_count():
    stop = plateau(metric="val/loss", patience=2, min_change=0.1)
    assert ends(stop, [3.0, 2.0, 1.95, 1.92, 0.5], metric="val/loss") == 4
    assert ends(stop, [3.0, 2.0, 1.95, 1.85, 1.8, 1.7], metric="val/loss") is None
    assert ends(stop, [float("nan")] * 3, metric="val/loss") == 2


@given(VALUES, st.floats(0, 1))
def test_a_target_is_reached_at_the_first_evaluation(values, value):
    reached = [num for num, found in enumerate(values, 1) if found >= value]
    stop = target(metric="val/accuracy", value=value)
    assert ends(stop, values) == next(iter(reached), None)


def test_a_target_of_a_loss_lies_below():
    stop = target(metric="train/loss", value=0.5)
    assert ends(stop, [1.0, 0.6, 0.5, 0.1], metric="train/loss") == 3


def test_a_run_ends_early_evaluated_with_a_checkpoint_and_stays_ended(flfast_run):
    words = (*SMALL, "stop=target", "stop.metric=train/loss", "stop.value=1.5", "eval_every=2")
    folder = flfast_run(*words)
    last = rows(folder)[-1]
    assert 1 < int(last["round"]) < 30
    assert int(last["round"]) % 2 == 0
    assert float(last["train/loss"]) <= 1.5
    assert last["val/accuracy"]
    assert read_checkpoint(checkpoint_folders(folder)[0]).round_idx == int(last["round"])
    assert "train/loss=" in (folder / "train.log").read_text()
    before = timeless(folder)
    assert timeless(flfast_run(*words, "resume=auto")) == before
    rounds = int(last["round"]) + 2
    further = flfast_run(*SMALL, f"rounds={rounds}", "eval_every=2", "resume=auto")
    assert timeless(further)[: len(before)] == before
    assert rows(further)[-1]["round"] == str(rounds)


@pytest.mark.slow
def test_ranks_end_together(flfast_run):
    ddp = ("strategy=ddp", "trainer.devices=2")
    words = (*SMALL, "stop=plateau", "stop.patience=1", "stop.min_change=0.9")
    assert len(rows(flfast_run(*words, *ddp))) == 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("stop=target",), "stop.value is missing"),
        (("stop=plateau", "stop.metric=val/f2"), "stop.metric=val/f2: must be one of"),
        (
            ("stop=plateau", "stop.metric=val/f1"),
            "stop.metric=val/f1: task=classification measures loss, accuracy, auc; allowed: one",
        ),
        (("stop=plateau", "stop.metric=personal/loss"), "stop.metric=personal/loss will not be"),
        (("stop=plateau", "stop.patience=0"), "stop.patience=0: must be greater than"),
    ],
)
def test_rules_that_cannot_work_are_refused(flfast_run, capsys, overrides, message):
    with pytest.raises(SystemExit):
        flfast_run(*SMALL, *overrides)
    assert message in capsys.readouterr().err
