"""Runs that are told to stop, by real signals to real processes."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from omegaconf import OmegaConf
from tables import rows, timeless

from flfast import train
from flfast.checkpoints.folders import checkpoint_folders, read_checkpoint
from flfast.config.phases import Phase
from flfast.setup import launch
from flfast.state.stop_requests import EXIT_STOPPED, StopRequests

QUICK = ("experiment=quick", "callbacks=none", "model=logistic", "checkpoint.every=1")
QUICK = (*QUICK, "engine=eager", "batch_size=50")
LONG = (*QUICK, "rounds=9999", "hydra.run.dir=run")
RANKS = ("strategy=ddp", "trainer.devices=2")


def wait_for_rounds(run, num):
    table = run.folder / "run" / "metrics.csv"
    for _ in range(1200):
        time.sleep(0.05)
        if table.exists() and len(table.read_text().splitlines()) > num:
            return
    raise AssertionError("it does not get on")


def stopped(run, *, rounds=3, number=signal.SIGTERM):
    """Exit code of a run that was told to stop after some rounds, and what it said."""
    wait_for_rounds(run, rounds)
    os.kill(run.pid, number)
    return run.end(timeout=60)


@pytest.mark.parametrize(
    ("number", "ranks"),
    [
        (signal.SIGINT, ("strategy=single", "trainer.devices=1")),
        pytest.param(
            *(signal.SIGUSR1, ("strategy=single", "trainer.devices=1")), marks=pytest.mark.slow
        ),
        pytest.param(signal.SIGTERM, RANKS, marks=pytest.mark.slow),
    ],
    ids=["interrupted", "warned", "ranks"],
)
def test_a_run_that_is_told_to_stop_can_go_on(flfast_run, start, number, ranks):
    run = start(train.main, *LONG, *ranks)
    code, said = stopped(run, number=number)
    folder = run.folder / "run"
    assert code == EXIT_STOPPED, said
    assert "Traceback" not in said
    done = int(rows(folder)[-1]["round"])
    assert read_checkpoint(checkpoint_folders(folder)[0]).round_idx == done
    assert f"resume=auto hydra.run.dir={folder.absolute()}" in (folder / "train.log").read_text()
    assert not list((folder / "checkpoints").glob("*.part"))
    if ranks != RANKS:
        whole = flfast_run(*QUICK, *ranks, f"rounds={done + 1}", run_dir="whole")
        again = flfast_run(
            *(*QUICK, *ranks, f"rounds={done + 1}", "resume=auto"), run_dir="process/run"
        )
        assert timeless(again) == timeless(whole)


def test_ranks_agree_to_stop_though_only_one_knew_before_they_met(tmp_path, in_world):
    (tmp_path / "1" / launch.STOP).mkdir(parents=True)
    phases = [Phase(1, OmegaConf.create({"strategy": {"timeout_s": 30}}))]

    def rank(world):
        dist.barrier()  # the other one may still be connecting
        dist.destroy_process_group()
        return launch._run_rank(phases, None, tmp_path / str(world.rank))

    outcomes = in_world(2, rank)
    assert [outcomes[rank].stopped for rank in (0, 1)] == [True, True]


def test_ranks_that_are_starting_are_told_to_stop(start):
    run = start(train.main, *LONG, *RANKS)
    ranks = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    while not ranks.read_text():
        time.sleep(0.001)
    os.kill(run.pid, signal.SIGTERM)
    code, said = run.end(timeout=60)
    assert code == EXIT_STOPPED, said


def test_stopping_ends_a_sweep(start):
    sweep = ("-m", "seed=1,2", *QUICK, "rounds=9999", "trainer.devices=1", "hydra.sweep.dir=run")
    run = start(train.main, *sweep)
    for _ in range(1200):
        time.sleep(0.05)
        if (run.folder / "run" / "0" / "checkpoints").exists():
            break
    os.kill(run.pid, signal.SIGTERM)
    code, said = run.end(timeout=60)
    assert code == EXIT_STOPPED, said
    assert not (run.folder / "run" / "1").exists()


def requests(pipe):
    with StopRequests(second="exit") as asked:
        pipe.send("ready")
        while asked.received is None:
            time.sleep(0.01)
        pipe.send(asked.received)
        time.sleep(60)


def test_a_second_signal_ends_a_process_at_once():
    fork = multiprocessing.get_context("fork")
    own, theirs = fork.Pipe()
    process = fork.Process(target=requests, args=(theirs,))
    process.start()
    assert own.recv() == "ready"
    os.kill(process.pid, signal.SIGTERM)
    assert own.recv() == "SIGTERM"
    os.kill(process.pid, signal.SIGINT)
    process.join(10)
    assert process.exitcode == 128 + signal.SIGINT


def test_a_second_signal_interrupts_a_program():
    """A run from Python must not end its process."""
    asked = StopRequests(second="raise")
    with pytest.raises(KeyboardInterrupt), asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.received == "SIGTERM"
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is not asked._handle


def test_handlers_are_as_they_were_and_a_used_sigusr1_is_left_alone():
    own = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    used = signal.getsignal(signal.SIGUSR1)
    with StopRequests(second="exit") as asked:
        assert signal.getsignal(signal.SIGTERM) == asked._handle
        assert signal.getsignal(signal.SIGUSR1) is used
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.received == "SIGTERM"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    signal.signal(signal.SIGUSR1, own)


@pytest.mark.slow
def test_a_hung_rank_is_found_and_all_go_on(start):
    hangs = ("+callbacks.hangs._target_=ranks_that_fail.Hangs", "strategy.timeout_s=3", "rounds=4")
    run = start(train.main, *QUICK, *RANKS, *hangs, "hydra.run.dir=run")
    code, said = run.end(timeout=120)
    assert code == 0, said
    assert "Traceback" not in said
    log = (run.folder / "run" / "train.log").read_text()
    assert log.count("a rank died: all ranks resume from round 2") == 1
    assert [row["round"] for row in rows(run.folder / "run")] == ["0", "1", "2", "3", "4"]


def test_an_error_of_the_program_is_not_tried_again(start):
    fails = ("+callbacks.fails._target_=ranks_that_fail.Fails", "rounds=4", "hydra.run.dir=run")
    run = start(train.main, *QUICK, *RANKS, *fails)
    code, said = run.end(timeout=120)
    assert code == 2
    assert "IndexError in your own code: of nothing" in said
    assert "Traceback" not in said, "only the part of the user's code"
    assert [path.name for path in (run.folder / "run").glob("[0-9]")] == ["0"]
