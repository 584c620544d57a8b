"""Worlds that torchrun or SLURM started: joined, checked, and ended together; real processes."""

import ctypes
import os
import socket
import sys
from pathlib import Path

import pytest
import torch
from composing import FILES
from omegaconf import OmegaConf
from sampling import others_slow
from tables import assert_same_numbers, rows

from flfast import train
from flfast.config.errors import ConfigError
from flfast.config.phases import Phase
from flfast.distributed.world import World, launched_world
from flfast.setup.external_world import (
    check_data_are_equal,
    check_folder_is_shared,
    fit_to_threads,
    fit_to_world,
)

QUICK = ("experiment=quick", "rounds=2", "callbacks=none", "engine=eager")
STEP = {
    "SLURM_JOB_ID": "71",
    "SLURM_JOB_NAME": "train",
    "SLURM_NODELIST": "127.0.0.[1-2]",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
}


def without(*names, **changes):
    return {name: value for name, value in {**STEP, **changes}.items() if name not in names}


def test_a_step_of_slurm_is_a_world(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(STEP))
    assert launched_world() == World(rank=2, size=3, local_rank=0, local_size=1)
    assert os.environ["MASTER_ADDR"] == "127.0.0.1"
    assert os.environ["MASTER_PORT"] == "15071"
    first = without(SLURM_PROCID="1", SLURM_LOCALID="1", SLURM_NODEID="0")
    monkeypatch.setattr(os, "environ", first)
    assert launched_world() == World(rank=1, size=3, local_rank=1, local_size=2)


@pytest.mark.parametrize(
    "env",
    [
        without(SLURM_JOB_NAME="bash"),
        without(SLURM_JOB_NAME="interactive"),
        without("SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
        without(SLURM_NTASKS="1", SLURM_STEP_NUM_TASKS="1", SLURM_STEP_TASKS_PER_NODE="1"),
        {},
    ],
    ids=["shell", "interactive", "batch-script-without-srun", "single-task", "no-slurm"],
)
def test_what_is_no_world_is_none(monkeypatch, env):
    monkeypatch.setattr(os, "environ", env)
    assert launched_world() is None


def test_torchrun_inside_of_slurm_goes_first(monkeypatch):
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    monkeypatch.setattr(os, "environ", {**STEP, **torchrun})
    assert launched_world() == World(rank=1, size=2, local_rank=1, local_size=2)


def phase(strategy, devices, shard="clients"):
    trainer = {"devices": devices, "accelerator": "cpu"}
    return Phase(
        1, OmegaConf.create({"strategy": {"name": strategy, "shard": shard}, "trainer": trainer})
    )


FOUR = World(rank=0, size=4, local_rank=0, local_size=2)


@pytest.mark.parametrize("devices", [-1, "auto", 2])
@pytest.mark.parametrize("strategy", ["ddp", "auto"])
def test_the_launcher_says_how_many_ranks_there_are(strategy, devices):
    (fitted,) = fit_to_world([phase(strategy, devices)], FOUR, equal_nodes=True)
    assert (fitted.config.strategy.name, fitted.config.trainer.devices) == ("ddp", 2)


@pytest.mark.parametrize("devices", [1, 3, 4, [0], [0, 1, 2]])
def test_another_number_of_devices_is_refused(devices):
    with pytest.raises(ValueError, match=r"started 2 rank.* allowed: 2, or auto"):
        fit_to_world([phase("single", 1), phase("ddp", devices)], FOUR, equal_nodes=True)


def test_uneven_nodes_share_clients_but_no_batches():
    fit_to_world([phase("ddp", "auto")], FOUR, equal_nodes=False)
    with pytest.raises(ValueError, match="the same number on every node"):
        fit_to_world([phase("ddp", "auto", "batch")], FOUR, equal_nodes=False)


@pytest.mark.parametrize("strategy", ["single", "dp"])
def test_ranks_without_work_are_said(caplog, strategy):
    (fitted,) = fit_to_world([phase(strategy, 3)], FOUR, equal_nodes=True)
    assert fitted.config.trainer.devices == 3
    assert "trains on one of the 4 ranks" in caplog.text


@pytest.mark.parametrize("devices", ["auto", -1, 2])
@pytest.mark.parametrize("strategy", ["auto", "ddp", "fsdp", "dp", "single"])
def test_ranks_that_nobody_asked_for_are_not_started_beside_threads(
    monkeypatch, caplog, strategy, devices
):
    caplog.set_level("INFO")
    monkeypatch.setattr("flfast.distributed.devices.num_cores", lambda: 4)
    given = phase(strategy, devices)
    given.config.update({"mode": "", "threads": 1, "sampler": {}, "partition": {}})
    assert fit_to_threads([given], []) == [given]
    (fitted,) = fit_to_threads([given], ["IOPub"])
    left_to_us = (strategy, devices) == ("auto", "auto")
    assert fitted.config.trainer.devices == (1 if left_to_us else devices)
    assert given.config.trainer.devices == devices
    assert ("(IOPub)" in caplog.text) == left_to_us


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


def one_rank():
    """The command, and how many threads it left."""
    train.main()
    Path("threads").write_text(str(torch.get_num_threads()))


@pytest.fixture
def run_ranks(start):
    """One process a rank, each in a folder of its own: (exit code, stderr) of each."""

    def run(envs, *overrides):
        port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        command = (*QUICK, *overrides, "hydra.run.dir=run")
        ranks = [
            start(one_rank, *command, folder=f"rank{number}", env={**port, **env})
            for number, env in enumerate(envs)
        ]
        return [rank.end() for rank in ranks]

    return run


@pytest.mark.parametrize(
    ("shard", "nodes"),
    [
        ("clients", 2),
        pytest.param("batch", 2, marks=pytest.mark.slow),
        pytest.param("batch", 1, marks=pytest.mark.slow),
    ],
)
def test_tasks_of_slurm_give_the_numbers_of_one_process(
    flfast_run, run_ranks, tmp_path, shard, nodes
):
    alone = rows(flfast_run(*QUICK))
    tasks = [
        {
            **STEP,
            "SLURM_NTASKS": "2",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_TASKS_PER_NODE": "1(x2)" if nodes == 2 else "2",
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank * (2 - nodes)),
            "SLURM_NODEID": str(rank * (nodes - 1)),
        }
        for rank in (0, 1)
    ]
    found = run_ranks(tasks, "strategy=ddp", f"strategy.shard={shard}")
    assert [code for code, _ in found] == [0, 0], found
    together = rows(tmp_path / "rank0" / "run")
    assert together[-1]["plan/strategy"] == f"ddp/{shard}"
    assert not (tmp_path / "rank1" / "run" / "metrics.csv").exists()
    assert_same_numbers(together, alone)
    # Lightning would give all cores to a rank that is alone on its node.
    assert [(tmp_path / f"rank{number}" / "threads").read_text() for number in (0, 1)] == ["1"] * 2


def ranks_of_torchrun():
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return [{**world, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]


@pytest.mark.slow
def test_an_error_on_one_rank_ends_all_and_is_said_once(flfast_run, run_ranks, tmp_path):
    for number in (0, 1):
        (tmp_path / f"rank{number}").mkdir()
    weights = flfast_run(*QUICK, *FILES, "rounds=1") / "model.pt"
    (tmp_path / "rank0" / "weights.pt").write_bytes(weights.read_bytes())
    (tmp_path / "rank1" / "weights.pt").write_text("no weights")
    found = run_ranks(ranks_of_torchrun(), "strategy=ddp", "init_from=weights.pt")
    assert [code for code, _ in found] == [2, 2]
    message = "rank 1: init_from=weights.pt holds no weights"
    assert found[0][1].count(message) == 1
    assert "Traceback" not in found[0][1]
    assert "flfast stops here" not in found[1][1]


def test_devices_that_are_not_the_ranks_are_one_error(run_ranks):
    found = run_ranks(ranks_of_torchrun(), "strategy=ddp", "trainer.devices=3")
    assert [code for code, _ in found] == [2, 2]
    message = "trainer.devices=3 with strategy=ddp: torchrun or SLURM started 2 rank(s)"
    assert [error.count(message) for _, error in found] == [1, 0]


def see_an_own_disk(folder):
    """Let this thread see an empty disk in a folder, as another machine would."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x00020000) == 0  # CLONE_NEWNS
    assert libc.mount(b"none", b"/", None, 0x4000 | (1 << 18), None) == 0  # MS_REC | MS_PRIVATE
    assert libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, None) == 0


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts need root")
@pytest.mark.parametrize("shared", [True, False])
def test_a_run_folder_that_nodes_do_not_share_is_refused_on_all(in_world, tmp_path, shared):
    def found(world):
        if world.rank and not shared:
            see_an_own_disk(tmp_path)
        try:
            check_folder_is_shared(world._replace(local_rank=0, local_size=1), tmp_path)
        except ConfigError as error:
            return str(error)

    said = in_world(2, found)
    assert said[0] == said[1]
    assert said[0] is None if shared else f"{tmp_path}: ranks [1] are on a node" in said[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changed", others_slow(["inputs", "targets", None], ["inputs", None]))
def test_data_that_differ_between_nodes_are_refused_on_all(in_world, make_data, changed):
    def found(world):
        data = make_data([6, 6])
        if world.rank and changed:
            getattr(data.examples, changed)[3] += 1
        try:
            check_data_are_equal(world._replace(local_rank=0, local_size=1), data)
        except ConfigError as error:
            return str(error)

    said = in_world(2, found)
    assert said[0] == said[1]
    assert (
        said[0] is None if changed is None else "ranks [1] differ from those of rank 0" in said[0]
    )
