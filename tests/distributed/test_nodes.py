"""Worlds of several nodes that are started again; torchrun's agents are real processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

import psutil
import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import rows, timeless

from flfast import train
from flfast.distributed.process_group import _of_this_group

LIMIT = timedelta(seconds=20)
RUN = (
    *("experiment=quick", "rounds=16", "local_epochs=20", "callbacks=none", "engine=eager"),
    *("threads=1", "checkpoint.every=1"),
)


@settings(max_examples=8, deadline=None)
@given(
    size=st.integers(2, 4),
    starts=st.lists(st.integers(0, 4), max_size=3),
    order=st.randoms(use_true_random=False),
)
def test_ranks_of_one_start_meet_whatever_earlier_ones_left(size, starts, order):
    """A start in which some ranks died early leaves its keys; the last one is complete."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    for number, died in enumerate(starts):
        store.add("groups", 1)
        left = dist.PrefixStore(f"group-{number + 1}", store)
        store.set("group", str(number + 1))
        for rank in range(1, size):
            if rank != died:
                left.set(f"rank-{rank}", f"{number}-{rank}")
        if died == 0:  # rank 0 died last
            left.set("members", '["0-1"]')
    found = {}

    def enter(rank):
        own = dist.TCPStore("localhost", store.port, is_master=False, timeout=LIMIT)
        group = _of_this_group(own, rank, size, LIMIT)
        group.set(f"here-{rank}", "")
        group.wait([f"here-{other}" for other in range(size)], LIMIT)
        found[rank] = group.get("members")

    threads = [threading.Thread(target=enter, args=(rank,)) for rank in range(size)]
    order.shuffle(threads)
    for thread in threads:
        thread.start()
        time.sleep(order.choice([0, 0.01]))
    for thread in threads:
        thread.join()
    assert len(found) == size
    assert len(set(found.values())) == 1


def agents(run_dir, port, folder):
    """Two agents of torchrun on this machine, as if they were two nodes."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=tests"),
        *("--max-restarts=2", "--local-addr=127.0.0.1", "-m", "flfast.train", *RUN),
        f"hydra.run.dir={run_dir}",
    ]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    for node in range(2):
        with (folder / f"node-{node}").open("w") as said:
            yield subprocess.Popen(command, env=env, stdout=said, stderr=subprocess.STDOUT)


def rank_of(agent):
    """The process that an agent of torchrun started for a rank."""
    (rank,) = (
        child
        for child in psutil.Process(agent.pid).children()
        if "flfast.train" in child.cmdline()
    )
    return rank


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_dies_on_one_node_is_started_again_on_both(tmp_path, start, killed):
    """Only the agent of the node on which it died counts the restart."""
    undisturbed = start(
        train.main,
        *RUN,
        "strategy=ddp",
        "trainer.devices=2",
        f"hydra.run.dir={tmp_path / 'undisturbed'}",
        folder=tmp_path,
    )
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    run_dir = tmp_path / "run"
    started = list(agents(run_dir, port, tmp_path))
    try:
        end = time.monotonic() + 120
        while not (run_dir / "metrics.csv").exists() or len(rows(run_dir)) < 5:
            assert time.monotonic() < end
            time.sleep(0.1)
        rank_of(started[killed]).send_signal(signal.SIGKILL)
        for agent in started:
            assert agent.wait(180) == 0, (tmp_path / "node-0").read_text()
    finally:
        for agent in started:
            agent.kill()
            agent.wait()
    assert undisturbed.end()[0] == 0
    found, expected = timeless(run_dir), timeless(tmp_path / "undisturbed")
    for row in [*found, *expected]:
        del row["plan/devices"]  # those of one node
    assert found == expected
