"""End-to-end tests of the command on real data, in this process."""

import json
import multiprocessing
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from composing import FILES
from sampling import others_slow
from tables import assert_same_numbers, rows, timeless
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.run import main as torchrun

from flfast import train
from flfast.distributed.launcher import can_fork
from flfast.output.results.table import read_rows

# The eager engine starts sooner, and large batches are few steps.
QUICK = ("experiment=quick", "rounds=2", "callbacks=none", "engine=eager", "batch_size=50")


def test_a_run_writes_tables_figures_and_weights(flfast_run):
    folder = flfast_run("experiment=quick", "callbacks=default", "logger=tensorboard")
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "metrics.csv",
        "clients.csv",
        "partition.json",
        "partition.png",
        "curves.png",
        "model.pt",
        "train.log",
    }
    assert [row["round"] for row in rows(folder)] == ["0", "1", "2", "3"]
    last = rows(folder)[-1]
    assert last["plan/strategy"] == "single"
    assert last["plan/precision"] == "32-true"
    assert float(last["comm/up_bytes"]) == 5 * 4 * sum(p.numel() for p in weights(folder).values())
    assert json.loads((folder / "partition.json").read_text())["num_clients"] == 10
    assert yaml.safe_load((folder / ".hydra" / "config.yaml").read_text())["rounds"] == 3
    assert list(folder.rglob("events.out.tfevents*"))


def weights(folder):
    return torch.load(folder / "model.pt", weights_only=True)


@pytest.mark.slow
def test_repeating_a_run_gives_identical_numbers(flfast_run):
    words = (*QUICK, "engine=auto", "rounds=1")
    first, second = (flfast_run(*words, run_dir=name) for name in "ab")
    assert timeless(first) == timeless(second)
    other = flfast_run(*words, "seed=1", run_dir="c")
    assert timeless(first) != timeless(other)


def test_a_run_beside_slurm_has_no_warning(flfast_run, tmp_path, monkeypatch):
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    flfast_run(*QUICK, "rounds=1")  # Lightning's warning would be an error


def test_a_run_starts_from_given_weights_of_its_model(flfast_run, capsys):
    first = flfast_run(*QUICK, "rounds=1", *FILES, run_dir="a")
    given = (*QUICK, "rounds=1", f"init_from={first / 'model.pt'}")
    second = flfast_run(*given, run_dir="b")
    assert float(rows(second)[0]["global/loss"]) == pytest.approx(
        float(rows(first)[-1]["global/loss"])
    )
    with pytest.raises(SystemExit):
        flfast_run(*given, "model=logistic", run_dir="c")
    assert "shapes ['fc.weight [10, 200] instead of [10, 64]']" in capsys.readouterr().err


def test_loader_workers_end_with_the_run(flfast_run):
    workers = ("loader.num_workers=1", "loader.persistent_workers=true")
    before = set(multiprocessing.active_children())
    flfast_run(*QUICK, *workers, "sampler.fraction=0.3", "trainer.limit_train_batches=2")
    assert set(multiprocessing.active_children()) == before


@pytest.mark.slow
def test_a_federation_lies_between_its_baselines(flfast_run):
    """With skewed clients: centralized >= federated >= local training."""
    words = ("rounds=12", "callbacks=none", "eval_every=12")
    modes = ("centralized", "federated", "local_only")
    together, federated, alone = (
        rows(flfast_run(f"mode={mode}", *words, run_dir=mode)) for mode in modes
    )
    assert float(federated[-1]["global/accuracy"]) > 0.93
    difference = float(federated[-1]["global/accuracy"]) - float(together[-1]["global/accuracy"])
    assert difference < 0.02
    # `local_only` is evaluated on the clients' own test data, so the federation is compared there.
    assert float(federated[-1]["local/accuracy"]) > float(alone[-1]["personal/accuracy"])
    assert float(alone[-1]["personal/accuracy"]) > float(alone[0]["personal/accuracy"]) + 0.1
    assert int(together[-1]["cohort/clients"]) == 1
    for baseline in (together, alone):
        assert float(baseline[-1]["comm/up_bytes"]) == float(baseline[-1]["comm/down_bytes"]) == 0


TINY = "engine=eager eval_examples=0.05 partition.num_clients=4"


TOGETHER = [
    f"model=resnet18 bn=local model.small_images=true {TINY}",
    f"model=resnet18 bn=recalibrate {TINY}",
    f"model=resnet18 bn=frozen {TINY}",
    f"model=resnet18 model.norm=group {TINY}",
    "local_optimizer_state=keep optimizer=adam",
    "local_optimizer_state=average optimizer.momentum=0.9",
    "batch_size=-1 micro_batch=16",
    "local_epochs=null local_steps=5 last_batch=pad",
    "lr_schedule=cosine lr_schedule.warmup_rounds=1 rounds=2",
    "partition=pathological sampler.dropout=0.3",
    "loader.num_workers=1 loader.persistent_workers=true",
    "trainer.precision=bf16-mixed trainer.gradient_clip_val=1.0",
    "trainer.fast_dev_run=true rounds=40",
    "optimizer=custom optimizer._target_=torch.optim.RMSprop +optimizer.alpha=0.9",
    "mode=centralized sampler.fraction=1.0 sampler.count=5 sampler.dropout=0.5",
    "algorithm=fedprox data=synthetic partition=natural optimized_metric=train/loss",
]


@pytest.mark.parametrize("overrides", others_slow(TOGETHER, TOGETHER[5:15:5]))
def test_options_work_together(flfast_run, overrides):
    limits = ("trainer.limit_train_batches=2",) if "local_steps" not in overrides else ()
    small = ("data.num_examples=400", "data.num_test=40") if "synthetic" in overrides else ()
    folder = flfast_run(
        *("sampler.fraction=0.3", "rounds=1", "local_epochs=1", "callbacks=none"),
        *limits,
        *small,
        *overrides.split(),
    )
    assert np.isfinite(float(rows(folder)[-1]["train/loss"]))


@pytest.mark.slow
def test_cohorts_of_random_size_of_clients_with_few_examples(flfast_run):
    """PFLlib's `-rjr` and `-fs`."""
    words = ("sampler=random_size", "sampler.min_fraction=0.2", "split.few_shot=2", "rounds=4")
    folder = flfast_run(*words, "local_epochs=1", "callbacks=files", "engine=eager")
    sizes = {int(row["cohort/clients"]) for row in rows(folder)[1:]}
    assert len(sizes) > 1
    assert min(sizes) >= 2
    clients = json.loads((folder / "partition.json").read_text())["clients"]
    assert max(client["train"] for client in clients) <= 2 * 10


def test_16_mixed_on_a_cpu_is_called_what_it_is(flfast_run):
    words = ("trainer.precision=16-mixed", "rounds=1", "local_epochs=1", "callbacks=none")
    folder = flfast_run(*words, "trainer.fp32_precision=ieee")
    assert rows(folder)[-1]["plan/precision"] == "bf16-mixed"
    log = (folder / "train.log").read_text()
    assert "trainer.precision=16-mixed is computed as bf16-mixed on a CPU" in log
    assert "trainer.fp32_precision=ieee has no effect on a CPU" in log
    assert "engine fused" in log


@pytest.mark.slow
def test_a_sweep_ends_with_a_comparison(flfast_run, capsys):
    folder = flfast_run("-m", "seed=1,2", "partition.alpha=0.1,1.0", *QUICK, "rounds=1")
    assert len(list(folder.glob("*/metrics.csv"))) == 4
    jobs = read_rows(folder / "comparison.csv")
    assert [(job["seed"], job["partition.alpha"]) for job in jobs] == [
        ("1", "0.1"),
        ("1", "1.0"),
        ("2", "0.1"),
        ("2", "1.0"),
    ]
    assert "Mean ± std over seeds" in capsys.readouterr().out
    assert (folder / "comparison.png").exists()


def write_idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def small_files(tmp_path):
    """A small MNIST in the original file format, a play of twelve speakers, and ten patients."""
    rng = np.random.default_rng(0)
    for name, num in (("train", 1200), ("t10k", 100)):
        raw = tmp_path / "data" / "MNIST" / "raw"
        write_idx(raw / f"{name}-images-idx3-ubyte", rng.integers(0, 256, (num, 28, 28)))
        write_idx(raw / f"{name}-labels-idx1-ubyte", np.arange(num) % 10)
    play = (f"SPEAKER {k}:\n{'To be, or not to be: ' * 80}" for k in range(12))
    (tmp_path / "data" / "tinyshakespeare.txt").write_text("\n\n".join(play))
    patients = tmp_path / "data" / "tcga-brca"
    patients.mkdir()
    rows = [f"T-AA-{k},{k % 3},{k % 2},{k + 1}" for k in range(10)]
    (patients / "brca.csv").write_text("\n".join(["pid,age,E,T", *rows]))
    (patients / "centers.csv").write_text("TSS Code,Region\nAA,South\n")
    rows = [f"T-AA-{k},{'test_0' if k > 6 else 'train_0'}" for k in range(10)]
    (patients / "train_test_split.csv").write_text("\n".join(["pid,fold2", *rows]))
    return tmp_path / "data"


SMALLER = {
    "mcmahan": ["sampler.fraction=0.02"],
    "shakespeare": ["model.layers=1"],
    "ifca": ["local_epochs=null", "data.num_clients=40"],
    "fl_simulator": [
        *("data=mnist", "~data.random_crop", "~data.random_flip", "partition.num_clients=20"),
        "sampler.count=2",
    ],
    "pfl_research": ["data=mnist", "partition.num_clients=100", "sampler.count=2"],
}
"""What experiments need to run on small files, by the first part of their names."""


@pytest.mark.slow  # all recipes are checked, and one of them runs, in other tests
@pytest.mark.parametrize("first", range(5))
def test_every_recipe_runs_a_round(flfast_run, small_files, root, monkeypatch, first):
    """A few batches with the eager engine; `engines/fused/test_fused.py` trains all models."""
    monkeypatch.setenv("FLFAST_DATA", str(small_files))
    few = ("engine=eager", "trainer.limit_train_batches=2", "eval_examples=0.02")
    pfllib = root.parent / "shared" / "data" / "pfllib-mnist"
    recipes = sorted(path.stem for path in (root / "conf" / "experiment").glob("*.yaml"))
    for recipe in recipes[first::5]:
        overrides = [f"experiment={recipe}", "rounds=1", "callbacks=none", "local_epochs=1", *few]
        overrides += [
            word for name in SMALLER if recipe.startswith(name) for word in SMALLER[name]
        ]
        if recipe.startswith("pfllib"):
            if not pfllib.exists():
                continue
            overrides += [f"data.root={pfllib}", "sampler.fraction=0.05"]
        folder = flfast_run(*overrides, run_dir=recipe)
        assert rows(folder)[-1]["round"] == "1" or recipe == "quick"


def test_two_ranks_give_the_numbers_of_one_process(flfast_run, capfd):
    """Ranks also start within a sweep, after a job that trained in this process."""
    folder = flfast_run("-m", "strategy=single,dp,ddp,auto", "trainer.devices=2", *QUICK)
    runs = [timeless(folder / str(num)) for num in range(4)]
    assert "strategy=single uses one of the 2 devices" in capfd.readouterr().out
    assert [run[1]["plan/strategy"] for run in runs] == ["single", "dp", *["ddp/clients"] * 2]
    for run in runs[1:]:
        assert_same_numbers(run, runs[0])
    assert can_fork(), "no job leaves a thread in this process"


def test_an_error_in_a_rank_is_one_clear_error(flfast_run, capfd):
    with pytest.raises(SystemExit):
        flfast_run("strategy=ddp", "trainer.devices=2", "optimizer.lr=1e18", *QUICK)
    assert "round 1: all 5 clients diverged" in capfd.readouterr().err


def second_of_two_nodes(port):
    """torchrun on the second node, with a forked rank to save the imports."""
    settings = LaunchConfig(
        min_nodes=2,
        max_nodes=2,
        nproc_per_node=1,
        run_id="none",  # torchrun's default
        rdzv_backend="static",
        rdzv_endpoint=f"localhost:{port}",
        rdzv_configs={"rank": 1, "timeout": 900},
        start_method="fork",
        max_restarts=0,
    )
    elastic_launch(settings, train.main)()


@pytest.mark.slow
def test_torchrun_on_two_nodes_gives_the_numbers_of_one_process(flfast_run, start, tmp_path):
    """The rank of the first node is a new interpreter without state of this process."""
    alone = rows(flfast_run(*QUICK))
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    overrides = ("strategy=ddp", *QUICK, "hydra.run.dir=run")
    agents = [
        start(
            torchrun,
            *("--nnodes=2", "--nproc-per-node=1", "--node-rank=0"),
            *("--master-addr=localhost", f"--master-port={port}", "-m", "flfast.train"),
            *overrides,
            folder="node0",
        ),
        start(partial(second_of_two_nodes, port), *overrides, folder="node1"),
    ]
    found = [agent.end() for agent in agents]
    assert [code for code, _ in found] == [0, 0], found
    assert not (tmp_path / "node1" / "run" / "metrics.csv").exists()
    assert_same_numbers(rows(tmp_path / "node0" / "run"), alone)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the rank in /proc")
def test_a_killed_rank_ends_the_run_with_one_clear_error(start):
    run = start(
        train.main,
        *("strategy=ddp", "trainer.devices=2", "rounds=9999", "callbacks=none"),
        "strategy.max_restarts=0",
        "hydra.run.dir=run",
    )
    table = run.folder / "run" / "metrics.csv"
    for _ in range(600):
        time.sleep(0.1)
        if table.exists() and len(table.read_text().splitlines()) > 3:
            break
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    victim = children[-1]
    os.kill(int(victim), signal.SIGKILL)
    code, errors = run.end(timeout=60)
    assert code == 2
    assert re.search(r"rank [01] of 2 died: Signal 9", errors)


@pytest.mark.slow
def test_ranks_that_cannot_be_forked_are_spawned(flfast_run, start):
    """With several threads ranks are spawned instead of forked; the results are the same."""
    alone = rows(flfast_run(*QUICK))
    ranks = ("strategy=ddp", "trainer.devices=2", "threads=2")
    # Four threads on two cores would otherwise spin for most of the time.
    idle = {"OMP_WAIT_POLICY": "passive"}
    spawned = start(train.main, *ranks, *QUICK, "hydra.run.dir=run", env=idle)
    assert spawned.end()[0] == 0
    folder = spawned.folder / "run"
    assert_same_numbers(rows(folder), alone, rel=1e-4)
    assert "ddp/clients on cpu:2" in (folder / "train.log").read_text()


@pytest.mark.skipif(sys.version_info < (3, 14), reason="the check of help is of Python 3.14")
def test_hydra_alone_does_not_start():
    """If this fails, Hydra has its fix: require that version, and remove `hydra_on_3_14.py`."""
    program = "from hydra._internal.utils import get_args_parser; get_args_parser()"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "LazyCompletionHelp" in process.stderr
