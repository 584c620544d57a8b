"""A run's folder is its own as long as the run lasts."""

import copy
import os
import pickle
import signal
import time
from pathlib import Path

import psutil
import pytest
from omegaconf import OmegaConf
from tables import rows

from flfast import train
from flfast.config import folder_lock
from flfast.config.run_folder import new_folder

LONG = ("rounds=400", "local_epochs=1", "callbacks=none", "eval_every=400", "model=logistic")
DDP = ("strategy=ddp", "trainer.devices=2")


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(folder_lock, "PATIENCE_S", 0.2)


def wait_for(found, what, timeout=60):
    end = time.monotonic() + timeout
    while not found():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def has_rounds(folder):
    table = folder / "metrics.csv"
    wait_for(lambda: table.exists() and table.read_text().count("\n") > 3, "no rounds")


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_second_run_in_a_folder_is_refused(start):
    first = start(train.main, *LONG, "trainer.devices=1", "hydra.run.dir=run")
    folder = first.folder / "run"
    has_rounds(folder)
    hydra = (folder / ".hydra" / "overrides.yaml").read_bytes()
    for more in ((), ("resume=auto",)):
        words = (f"hydra.run.dir={folder}", "rounds=1", "trainer.devices=1", *more)
        code, stderr = start(train.main, *words, folder="second").end()
        assert code == 2
        assert f"hydra.run.dir={folder}: process {first.pid} on " in stderr
        assert "writes there; allowed: another folder, or wait until that run ends" in stderr
        assert (folder / ".hydra" / "overrides.yaml").read_bytes() == hydra
    first.kill()


@pytest.mark.slow
def test_runs_that_start_in_the_same_second_have_folders_of_their_own(start):
    small = ("rounds=1", "local_epochs=1", "callbacks=none", "trainer.devices=1", "engine=eager")
    runs = [start(train.main, *small, folder="same", env={"TZ": "UTC"}) for _ in range(2)]
    assert [run.end()[0] for run in runs] == [0, 0]
    tables = list((runs[0].folder / "outputs").glob("*/*/metrics.csv"))
    assert len(tables) == 2
    assert all([row["round"] for row in rows(table.parent)] == ["0", "1"] for table in tables)


def test_new_folders_are_never_shared(tmp_path):
    name = str(tmp_path / "day" / "time")
    assert [new_folder(name) for _ in range(3)] == [name, f"{name}-2", f"{name}-3"]


def test_copies_of_a_config_name_the_same_folder(tmp_path):
    """A launcher of sweeps sends its config to other processes."""
    config = OmegaConf.create({"dir": f"${{new_folder:{tmp_path}/time}}"})
    first = config.dir
    for other in (config, copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert other.dir == first
    assert [path.name for path in tmp_path.iterdir()] == ["time"]


@pytest.mark.parametrize(
    ("env", "is_later"),
    [
        ({"RANK": "0"}, False),
        ({"RANK": "3"}, True),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_NAME": "x"}, True),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_NAME": "bash"}, False),
        ({"SLURM_PROCID": "1"}, False),
    ],
)
def test_only_rank_0_of_a_launched_world_makes_a_folder(tmp_path, monkeypatch, env, is_later):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    name = str(tmp_path / "time")
    found = new_folder(name)
    assert found == (f"{name}-ranks" if is_later else name)
    assert Path(name).exists() is not is_later


def test_a_folder_that_cannot_be_written(flfast_run, tmp_path, capsys):
    (tmp_path / "run").touch()
    with pytest.raises(SystemExit) as stopped:
        flfast_run("rounds=1")
    assert stopped.value.code == 2
    assert f"hydra.run.dir={tmp_path / 'run'}: cannot be written: " in capsys.readouterr().err


@pytest.mark.slow  # `tests/distributed/test_launcher.py` kills a rank, `tests/checkpoints` a run
def test_ranks_end_with_their_launcher_and_the_run_can_be_resumed(start):
    words = (*LONG, *DDP, "client_states=disk", "hydra.run.dir=run", "checkpoint.every=1")
    run = start(train.main, *words)
    has_rounds(run.folder / "run")
    ranks = psutil.Process(run.pid).children(recursive=True)
    assert len(ranks) >= 2
    os.kill(run.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert alive == []
    words = ("rounds=400", *words[1:], "resume=auto")
    again = start(train.main, *words, folder="process")
    done = len(rows(run.folder / "run"))
    wait_for(lambda: len(rows(run.folder / "run")) > done + 3, "no rounds after the resume")
    again.kill()
