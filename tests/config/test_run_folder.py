"""A run's folder is its own as long as the run lasts."""

import contextlib
import copy
import multiprocessing
import os
import pickle
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tables import rows

import flfast
from flfast import train
from flfast.config import folder_lock
from flfast.config.errors import ConfigError
from flfast.config.folder_lock import FolderLock
from flfast.config.run_folder import hold_folder, is_held, new_folder
from flfast.output.results.outcome import EXIT_BUSY
from flfast.state.real_folder import literal, real_folder

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
        assert code == EXIT_BUSY
        assert f"hydra.run.dir={folder}: process {first.pid} on " in stderr
        assert "writes there; allowed: another folder, or wait until it ends" in stderr
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


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """`home/a b/run`, and `home/link` to `home/a b/run/deep`, so that `link/..` is `a b/run`."""
    home = tmp_path_factory.mktemp("home")
    (home / "a b" / "run" / "deep").mkdir(parents=True)
    (home / "link").symlink_to(home / "a b" / "run" / "deep")
    (home / "a b" / "again").symlink_to("../a b")
    return home


STEPS = st.sampled_from(["a b", "run", "deep", "link", "again", ".", "..", "", "new"])
PATHS = st.builds(
    "/".join, st.tuples(st.sampled_from([".", "~", "HOME"]), STEPS, STEPS, STEPS, STEPS)
)


@given(path=PATHS, other=PATHS)
def test_all_spellings_of_a_path_are_the_same_folder(tree, path, other):
    """The system is the judge of what is the same, where there is such a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tree / "a b")
        patch.setenv("HOME", str(tree))
        spelled = [text.replace("HOME", str(tree)) for text in (path, other)]
        found = [real_folder(text) for text in spelled]
        by_system = [os.path.expanduser(text) for text in spelled]  # noqa: PTH111
        for folder, text in zip(found, by_system, strict=True):
            if os.path.isdir(text):  # noqa: PTH112
                assert os.path.samefile(folder, text)  # noqa: PTH121
        if all(map(os.path.isdir, by_system)):
            assert (found[0] == found[1]) is os.path.samefile(*by_system)  # noqa: PTH121
        assert real_folder(found[0]) == real_folder(f"{found[0]}/") == found[0]
        with hold_folder(Path(spelled[0]), key="folder"):
            assert is_held(spelled[0])
            assert is_held(spelled[1]) is (found[0] == found[1])
            if found[0] == found[1]:
                with pytest.raises(ConfigError, match="this process writes there"):
                    hold_folder(Path(spelled[1]), key="folder").__enter__()
        assert not is_held(spelled[0])


@given(st.text("a \\${}'", min_size=1))
def test_a_path_is_no_interpolation(text):
    assert OmegaConf.create({"dir": literal(text)}).dir == text


@pytest.mark.usefixtures("impatient")
def test_a_lock_of_this_process_is_not_said_to_be_of_another(tmp_path):
    lock = FolderLock(tmp_path, setting="folder=x")
    with pytest.raises(ConfigError, match="folder=x: this process writes there"):
        FolderLock(tmp_path, setting="folder=x")
    lock.release()


SMALL = ("local_epochs=1", "callbacks=none", "batch_size=100", "engine=eager", "model=logistic")


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Run the command in this process, in `my home/here`; the user's home is `my home`."""
    here = tmp_path / "my home" / "here"
    here.mkdir(parents=True)
    (tmp_path / "link").symlink_to(here)
    monkeypatch.setenv("HOME", str(here.parent))
    monkeypatch.chdir(here)

    def command(*words):
        words = ("flfast", *words, *SMALL, "trainer.devices=1")
        monkeypatch.setattr(sys, "argv", [*words])
        train.main()

    return command


LAUNCHERS = [
    pytest.param((), id="basic"),
    pytest.param(("hydra/launcher=packed",), id="packed", marks=pytest.mark.slow),
]


def test_a_run_is_the_same_by_every_spelling_of_its_folder(command, tmp_path):
    home = tmp_path / "my home"
    spellings = ("../out/x", "~/out/x", f"{tmp_path}/link/../new/../out//x/")
    for num, spelling in enumerate(spellings, start=1):
        command(f"hydra.run.dir={spelling}", f"rounds={num}", "resume=auto")
        assert [row["round"] for row in rows(home / "out" / "x")] == [*map(str, range(num + 1))]
    words = (*SMALL, "trainer.devices=1", f"rounds={num}", "resume=auto")
    for spelling in ("~/out/x", Path("..", "out", "x")):
        run = flfast.run(*words, folder=spelling)
        assert run.folder == flfast.Run(spelling).folder == home / "out" / "x"
    assert sorted(path.name for path in tmp_path.rglob("metrics.csv*")) == ["metrics.csv"]
    assert [path.name for path in home.iterdir()] == ["here", "out"]
    assert not list((home / "here").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("more", LAUNCHERS)
def test_a_sweep_is_the_same_by_every_spelling_of_its_folder(command, tmp_path, capfd, more):
    sweep = tmp_path / "my home" / "s"
    command("-m", "hydra.sweep.dir=~/s", "seed=1", "rounds=1", *more)
    result = (sweep / "0" / "result.json").read_bytes()
    spelling = f"hydra.sweep.dir={tmp_path}/link/../s"
    command("-m", spelling, "seed=1,2", "rounds=1", "resume=auto", *more)
    assert more or f"{sweep}/0: finished before" in capfd.readouterr().out
    assert (sweep / "0" / "result.json").read_bytes() == result
    assert sorted(path.parent for path in tmp_path.rglob("result.json")) == [
        sweep / "0",
        sweep / "1",
    ]
    assert not list((tmp_path / "my home" / "here").iterdir())


@contextlib.contextmanager
def held_elsewhere(folder):
    """Another process holds the lock of a folder; its number."""
    fork = multiprocessing.get_context("fork")
    ready, end = fork.Event(), fork.Event()

    def hold():
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder, setting="folder")
        ready.set()
        end.wait()
        lock.release()

    process = fork.Process(target=hold)
    process.start()
    try:
        assert ready.wait(60)
        yield process.pid
    finally:
        end.set()
        process.join()


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("hydra.run.dir=../x",), id="run"),
        pytest.param(("-m", "seed=1", "hydra.sweep.dir=../x"), id="sweep", marks=pytest.mark.slow),
    ],
)
def test_a_busy_folder_has_an_exit_code_of_its_own(command, tmp_path, capsys, words):
    folder = tmp_path / "my home" / "x"
    with held_elsewhere(folder) as number:
        before = contents(folder)
        with pytest.raises(SystemExit) as stopped:
            command(*words, "rounds=1")
        assert stopped.value.code == EXIT_BUSY == 73
        key = words[-1].partition("=")[0]
        assert f"{key}={folder}: process {number} on " in capsys.readouterr().err
        assert contents(folder) == before


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("more", LAUNCHERS)
def test_a_job_whose_folder_is_busy_leaves_it_alone_and_the_others_run(
    command, tmp_path, capsys, more
):
    sweep = tmp_path / "my home" / "s"
    with held_elsewhere(sweep / "0") as number:
        before = contents(sweep / "0")
        with pytest.raises(SystemExit) as stopped:
            command("-m", "hydra.sweep.dir=../s", "seed=1,2", "rounds=1", *more)
        assert stopped.value.code == EXIT_BUSY
        said = f"hydra.sweep.dir={sweep} hydra.sweep.subdir=0: process {number} on "
        assert said in capsys.readouterr().err
        assert contents(sweep / "0") == before
    assert len(rows(sweep / "1")) == 2
