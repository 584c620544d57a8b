"""Sweeps of the real command: killed, stopped, packed, with a job that fails among the others."""

import csv
import multiprocessing
import os
import signal
import time
from itertools import product

import pytest
from processes import Command
from tables import timeless

from flfast import train
from flfast.output.callbacks.comparison import write_comparison
from flfast.output.results.outcome import outcome, read_result

SEEDS = (0, 1, 2, -1, 4)
"""Job 3 is refused."""
GOOD = [num for num, seed in enumerate(SEEDS) if seed >= 0]
OVERRIDES = (
    *("-m", f"seed={','.join(map(str, SEEDS))}", "rounds=3", "local_epochs=1"),
    *("data=synthetic", "data.num_examples=400", "data.num_test=40", "partition=iid"),
    *("model=logistic", "checkpoint.every=1", "callbacks=none", "trainer.devices=1"),
)
PACKED = ("hydra/launcher=packed", "hydra.launcher.workers=2")


def main():
    os.setpgid(0, 0)  # so that all of its processes can be killed at once
    train.main()


def start(folder, *overrides):
    folder.mkdir(exist_ok=True)
    return Command(main, (*OVERRIDES, *overrides, "hydra.sweep.dir=sweep"), folder, {})


def wait_for(run, path):
    while not path.exists():
        assert multiprocessing.active_children(), (run.folder / "stderr").read_text()
        time.sleep(0.01)


def num_finished(folder):
    return sum(outcome(job) == "finished" for job in (folder / "sweep").glob("*/"))


def table(folder):
    """The comparison without columns of time."""
    write_comparison(folder / "sweep")
    with (folder / "sweep" / "comparison.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def uninterrupted(request, tmp_path_factory):
    request.getfixturevalue("ran_once")
    folder = tmp_path_factory.mktemp("uninterrupted")
    code, errors = start(folder).end()
    assert code == 2
    assert "seed=-1: must be greater than or equal to 0" in errors
    return folder


def assert_same_sweep(folder, other):
    for num in GOOD:
        found, expected = (timeless(place / "sweep" / str(num)) for place in (folder, other))
        assert found == expected
    assert table(folder) == table(other)


def test_a_job_that_fails_does_not_stop_the_others(uninterrupted):
    assert num_finished(uninterrupted) == len(GOOD)
    status = {int(row["job"]): row["status"] for row in table(uninterrupted)}
    assert status == {num: "finished" if num in GOOD else "failed" for num in range(len(SEEDS))}
    log = (uninterrupted / "stdout").read_text()
    assert "job 3 failed: seed=-1: must be greater than or equal to 0, 1 of 5 jobs left" in log
    assert "job 4 is done: seed=4, val/accuracy " in log
    assert ", 0 of 5 jobs left" in log


@pytest.mark.slow  # a killed run goes on in `tests/checkpoints/test_kills.py`
def test_a_killed_sweep_goes_on_where_it_stopped(uninterrupted, tmp_path):
    run = start(tmp_path)
    wait_for(run, tmp_path / "sweep" / "2" / "checkpoints" / "round-000001")
    os.killpg(run.pid, signal.SIGKILL)
    run.end()
    finished = num_finished(tmp_path)
    assert 2 <= finished < len(GOOD)
    weights = tmp_path / "sweep" / "0" / "metrics.csv"
    before = weights.stat().st_mtime_ns
    assert start(tmp_path, "resume=auto").end()[0] == 2
    assert weights.stat().st_mtime_ns == before
    assert (tmp_path / "stdout").read_text().count("finished before") == finished
    assert_same_sweep(tmp_path, uninterrupted)


@pytest.mark.slow
def test_a_packed_sweep_that_is_stopped_goes_on_to_the_numbers_of_single_jobs(
    uninterrupted, tmp_path
):
    run = start(tmp_path, *PACKED)
    wait_for(run, tmp_path / "sweep" / "1" / "checkpoints" / "round-000001")
    os.kill(run.pid, signal.SIGTERM)
    code, errors = run.end()
    assert code == 75, errors
    assert num_finished(tmp_path) < len(GOOD)
    code, errors = start(tmp_path, *PACKED, "resume=auto").end()
    assert code == 2, errors
    assert "seed=-1" in errors
    log = (tmp_path / "stdout").read_text()
    assert "5 jobs, 2 at a time" in log
    assert "job 3 failed: seed=-1: must be greater than or equal to 0" in log
    output = (tmp_path / "sweep" / "4" / "output.log").read_text()
    assert "engine fused, single on cpu:1" in output
    assert "local steps run as" not in output  # compiled once for all jobs
    assert_same_sweep(tmp_path, uninterrupted)


def test_a_sweep_is_not_overwritten(uninterrupted, tmp_path):
    """Without resume=auto; and no job takes the result of another experiment."""
    place = f"hydra.sweep.dir={uninterrupted / 'sweep'}"
    (tmp_path / "again").mkdir()
    words = ("-m", "seed=0", *OVERRIDES[2:], place)
    code, errors = Command(train.main, words, tmp_path / "again", {}).end()
    assert code == 2
    assert "job 0: hydra.sweep.dir=" in errors
    assert "already holds a run, which is finished; allowed: resume=auto" in errors
    (tmp_path / "other").mkdir()
    words = (*words, "resume=auto", "optimizer.lr=0.2")
    code, errors = Command(train.main, words, tmp_path / "other", {}).end()
    assert code == 2
    assert "optimizer.lr: " in errors


@pytest.mark.slow
@pytest.mark.usefixtures("ran_once")
@pytest.mark.parametrize(("launcher", "every"), [*product(["packed", "basic"], [0, 1])])
def test_a_job_that_has_finished_is_not_repeated(tmp_path, launcher, every):
    """Its result is known without a checkpoint, whichever settings the launcher adds."""
    kept = [
        word for word in OVERRIDES[2:] if not word.startswith(("checkpoint", "trainer", "rounds"))
    ]
    words = ("-m", "seed=0,1", *kept, f"hydra/launcher={launcher}", f"checkpoint.every={every}")
    words += ("rounds=1", "engine=eager", "hydra.sweep.dir=sweep")
    code, errors = Command(train.main, words, tmp_path, {}).end()
    assert code == 0, errors
    files = [*tmp_path.glob("sweep/[01]/*.csv"), *tmp_path.glob("sweep/[01]/result.json")]
    assert len(files) == 4
    before = [file.stat().st_mtime_ns for file in files]
    code, errors = Command(train.main, (*words, "resume=auto"), tmp_path, {}).end()
    assert code == 0, errors
    assert [file.stat().st_mtime_ns for file in files] == before


@pytest.mark.slow
def test_a_job_whose_process_dies_has_failed(tmp_path):
    """An out-of-memory killer does this."""
    (tmp_path / "model.py").write_text(DIES, encoding="utf-8")
    words = (
        *("-m", "model=custom", "model._target_=model.dies", "+model.after=0,9", "rounds=1"),
        *("data=synthetic", "data.num_examples=400", "sampler.count=2", "partition=iid"),
        *("engine=eager", "callbacks=none", *PACKED, "hydra.sweep.dir=sweep"),
    )
    code, errors = Command(train.main, words, tmp_path, {}).end()
    assert code == 1
    assert "RuntimeError: its process died with code -9" in errors
    assert [row["status"] for row in table(tmp_path)] == ["failed", "finished"]
    said = read_result(tmp_path / "sweep" / "0")
    assert said.error == "RuntimeError: its process died with code -9"


DIES = """
import os
import signal

from torch import nn


def dies(*, num_classes, after):
    if after == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return nn.Sequential(nn.Flatten(), nn.Linear(32, num_classes))
"""
