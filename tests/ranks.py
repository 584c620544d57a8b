"""Worlds of real processes that are started once and then solve one problem after another."""

import multiprocessing
import os
import signal
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_only
from problems import Problem
from solving import Solution, Way, merged, solve

from flfast.distributed.world import launched_world

# Forked, because a spawned process imports everything anew.
_FORK = multiprocessing.get_context("fork")


class Ranks:
    """A world of a given size, started when it is first needed.

    Args:
        size: ranks.
        folder: where they meet; empty.
    """

    def __init__(self, size: int, folder: Path) -> None:
        self.size, self.folder = size, folder
        self._num_starts = 0
        self._processes: list = []
        self._pipes: list[Connection] = []

    def solve(self, problem: Problem, way: Way) -> Solution:
        """The problem solved by all ranks together.

        Raises:
            AssertionError: with the traceback of a rank that failed, or if ranks disagree.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((problem, way))
        parts: dict[int, Solution] = {}
        while len(parts) < self.size:
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in parts]
            for pipe in wait(waiting):
                rank = self._pipes.index(pipe)
                try:
                    parts[rank] = pipe.recv()
                except EOFError:
                    parts[rank] = "died"
                if isinstance(parts[rank], str):
                    self.close()  # the others wait for it in a collective
                    raise AssertionError(f"rank {rank} of {self.size}: {parts[rank]}")
        return merged([parts[rank] for rank in range(self.size)])

    def _start(self) -> None:
        meeting = self.folder / f"world{self.size}-{self._num_starts}"
        self._num_starts += 1
        for rank in range(self.size):
            own, theirs = _FORK.Pipe()
            process = _FORK.Process(
                target=_serve, args=(rank, self.size, theirs, meeting), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(own)

    def close(self) -> None:
        """End the processes; the next problem starts new ones."""
        for process in self._processes:
            process.terminate()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []


def _serve(rank: int, size: int, pipe: Connection, meeting: Path) -> None:
    # What TorchElastic would set; the port is for nobody, ranks meet in a file.
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "0",
        "TORCHELASTIC_RUN_ID": "tests",
    }
    # The handler of a TorchElastic agent that ran in the parent is not for us.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    world = launched_world()
    rank_zero_only.rank = rank
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    while True:
        try:
            problem, way = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(solve(problem, way, world))
        except BaseException:  # noqa: BLE001 - the test reports it
            pipe.send(traceback.format_exc())
