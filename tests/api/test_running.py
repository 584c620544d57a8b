"""`flfast.run` and `flfast.compose` are the command, without its process."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from tables import timeless

import flfast
from flfast.api import running
from flfast.config import run_folder
from flfast.config.composition import compose
from flfast.config.own import Own
from flfast.datamodules.examples import Examples
from flfast.datamodules.transforms import BatchTransform

SMALL = ("rounds=2", "local_epochs=1", "batch_size=100", "engine=eager")
QUICK = (*SMALL, "trainer.devices=1", "callbacks=none")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run with its default folder, and what it should have left as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("program"))
        return flfast.run(*QUICK[:-1], "callbacks=files")


def test_a_run_is_that_of_the_command_line_bit_for_bit(flfast_run, done):
    folder = flfast_run(*QUICK[:-1], "callbacks=files")
    assert timeless(done.folder) == timeless(folder)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {
        str(p.relative_to(done.folder)) for p in done.folder.rglob("*") if p.is_file()
    } == names
    for name in ("config", "overrides"):
        mine, theirs = (place / ".hydra" / f"{name}.yaml" for place in (done.folder, folder))
        assert mine.read_text() == theirs.read_text()
    hydra = [OmegaConf.load(p / ".hydra" / "hydra.yaml").hydra for p in (done.folder, folder)]
    assert hydra[0].runtime.choices == hydra[1].runtime.choices
    assert hydra[0].job.keys() == hydra[1].job.keys()
    for run in (done, flfast.Run(folder)):
        for name, value in run.model.state_dict().items():
            assert torch.equal(value, torch.load(folder / "model.pt")[name])


def test_a_default_folder_is_named_after_the_time(done):
    assert done.folder.parent.parent.name == "outputs"
    assert done.folder.is_dir()


def test_results_are_tables_a_model_and_a_picture(done):
    assert list(done.history["round"]) == [0, 1, 2]
    assert done.history["global/accuracy"].between(0, 1).all()
    assert done.history["personal/accuracy"].isna().all()
    assert list(done.clients["client_id"]) == list(range(10))
    assert set(done.clients["round"]) == {2}
    assert not done.model.training
    assert done.plot()._repr_png_().startswith(b"\x89PNG")
    assert len(done.plot().axes) == 2


def test_without_pandas_tables_are_rows(done, monkeypatch):
    losses = done.history["global/loss"]
    monkeypatch.setattr("flfast.api.result.find_spec", lambda name: None)
    rows = flfast.Run(done.folder).history
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert rows[1]["personal/accuracy"] is None
    assert rows[1]["plan/strategy"] == "single"
    assert rows[1]["global/loss"] == losses[1]


def test_what_a_run_did_not_write_is_an_error_that_says_why(quick):
    run = quick("logger=none")
    for name, reason in {
        "history": "metrics.csv: logger=none writes none",
        "clients": "clients.csv: callbacks=none writes none",
        "model": "model.pt: the server has no complete model, .* or callbacks=none",
    }.items():
        with pytest.raises(flfast.ConfigError, match=reason):
            getattr(run, name)


def test_a_program_that_logs_warnings_only_sees_no_other_lines(quick):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append((record.name, record.levelno))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    try:
        run = quick()
        assert not [line for line in lines if line[1] < logging.WARNING]
        root.setLevel(logging.INFO)
        quick(folder="informed")
        assert ("flfast.setup.build_federation", logging.INFO) in lines
    finally:
        root.removeHandler(handler)
    assert not handler.filters
    assert "INFO" in (run.folder / "train.log").read_text()


def test_a_run_leaves_no_trace_in_its_process(quick):
    """Also after an error. And it needs no state: it runs in a thread, and in an event loop."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)

    def state():
        root = logging.getLogger()
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        seeds = torch.get_rng_state().tolist()
        environment = os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads()
        hydra = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
        return root.handlers[:], root.level, handlers, seeds, environment, hydra

    before, found = state(), {}
    first = found["once"] = quick(folder="once")
    assert state() == before
    with pytest.raises(flfast.ConfigError):
        quick("optimizer.lr=1e30")
    assert state() == before
    thread = threading.Thread(target=lambda: found.update(thread=quick(folder="thread")))
    thread.start()
    thread.join()

    async def program():
        found["loop"] = quick(folder="loop")

    asyncio.run(program())
    assert state() == before
    logging.getLogger().removeHandler(handler)
    for name in ("thread", "loop"):
        assert timeless(found[name].folder) == timeless(first.folder)
    assert not run_folder._held


def test_two_runs_at_once_are_refused(quick, monkeypatch):
    def second(*_, **__):
        with pytest.raises(flfast.ConfigError, match="another run is going on in this process"):
            quick()
        raise flfast.ConfigError("the first run ends here")

    monkeypatch.setattr("flfast.setup.launch.run", second)
    with pytest.raises(flfast.ConfigError, match="the first run ends here"):
        quick()


@pytest.mark.slow
def test_a_folder_is_used_once_unless_its_run_is_resumed(quick):
    first = quick("checkpoint.every=1", folder="mine")
    with pytest.raises(
        flfast.ConfigError, match=r"folder=.*mine already holds a run, which is fin"
    ):
        quick(folder="mine")
    with pytest.raises(flfast.ConfigError, match="that run is another experiment"):
        quick("resume=auto", "seed=1", folder="mine")
    before = timeless(first.folder)
    longer = quick("resume=auto", "rounds=3", folder="mine")
    assert timeless(longer.folder)[:3] == before
    assert len(longer.history) == 4


@pytest.mark.parametrize(
    "words",
    [
        ("roundss=3",),
        ("rounds=0", "batch_size=-7"),
        ("algorithm=fedprx",),
        ("algorithm.mu=1",),
        ("seed=1,2",),
        ("+rounds=2",),
        ("schedule.phases=[{from: 2, overrides: ['seed=1']}]",),
        ("schedule.phases=[{from: 2, overrides: ['batchsize=1']}]",),
    ],
    ids=" ".join,
)
def test_errors_are_exceptions_with_the_text_of_the_command(quick, flfast_run, capsys, words):
    with pytest.raises(flfast.ConfigError) as raised:
        quick(*words)
    with pytest.raises(SystemExit):
        flfast_run(*QUICK, *words)
    said = capsys.readouterr().err.splitlines()
    shown = "\n".join(line.removeprefix("  ") for line in said[1:-1])
    for line in str(raised.value).splitlines():
        # Hydra itself words two hints for a shell.
        assert line.strip() in shown or "use key" in line or "quote the value" in line


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("-m", "flags belong to the command line"),
        ("hydra.run.dir=x", r"write flfast.run\(\.\.\., folder='x'\)"),
        ("folder=x", r"write flfast.run\(\.\.\., folder='x'\)"),
        ("hydra/launcher=basic", "allowed: hydra.searchpath"),
        (5, "5 is of type int; allowed: texts"),
    ],
)
def test_what_only_the_command_line_has_is_refused(word, hint):
    with pytest.raises(flfast.ConfigError, match=hint):
        flfast.compose(word)


def test_compose_returns_the_checked_config(tmp_path):
    config = flfast.compose("algorithm=fedprox", "algorithm.mu=0.5", "rounds=3")
    assert (config.algorithm.mu, config.rounds) == (0.5, 3)
    assert "hydra" not in config
    assert OmegaConf.to_container(config, resolve=True)["logger"]["csv"]["save_dir"]
    (tmp_path / "algorithm").mkdir()
    text = "_target_: flfast.algorithms.fedavg.fedavg\n_partial_: true\nweighting: uniform\n"
    (tmp_path / "algorithm" / "mine.yaml").write_text(text)
    words = (f"hydra.searchpath=[file://{tmp_path}]", "algorithm=mine")
    assert flfast.compose(*words).algorithm.weighting == "uniform"


def test_importing_flfast_is_cheap():
    program = "import sys, flfast; sys.exit(bool({'torch', 'hydra', 'pydantic'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("task", "owner", "words", "chosen"),
    [
        ("classification", None, (), []),
        ("regression", None, (), ["partition=iid"]),
        ("regression", np.arange(6) % 2, (), ["partition=natural"]),
        ("regression", None, ("partition=sizes",), []),
    ],
)
def test_own_data_choose_the_partition_that_suits_them(task, owner, words, chosen):
    targets = torch.rand(6, 1) if task == "regression" else torch.arange(6)
    width = 1 if task == "regression" else 6
    examples = Examples(
        torch.rand(6, 2), targets, width, (2,), BatchTransform(), owner=owner, task=task
    )
    assert running._implied_by(Own(data=examples), words) == chosen


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["data=har"], "natural"),
        (["data=table"], "iid"),
        (["partition=dirichlet", "data=har"], "dirichlet"),
    ],
)
def test_data_may_choose_a_partition_which_the_command_line_overrides(words, chosen):
    assert compose(words).hydra.runtime.choices.partition == chosen
