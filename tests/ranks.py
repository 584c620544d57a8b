"""Worlds of real processes that are started once and solve many problems."""

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

# A spawned process would import everything again.
_FORK = multiprocessing.get_context("fork")


class Ranks:
    """A world that starts at its first problem.

    Args:
        size: world size.
        folder: empty folder for the files of the rendezvous.
    """

    def __init__(self, size: int, folder: Path) -> None:
        self.size, self.folder = size, folder
        self._num_starts = 0
        self._processes: list = []
        self._pipes: list[Connection] = []

    def solve(self, problem: Problem, way: Way) -> Solution:
        """Solve a problem on all ranks.

        Raises:
            AssertionError: with the traceback of a failed rank, or if ranks disagree.
        """
        if not all(process.is_alive() for process in self._processes):
            self.close()  # a test that stopped a run in this process has stopped them, too
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
                    self.close()  # the other ranks hang in a collective
                    raise AssertionError(f"rank {rank} of {self.size}: {parts[rank]}")
        return merged([parts[rank] for rank in range(self.size)])

    def _start(self) -> None:
        rendezvous = self.folder / f"world{self.size}-{self._num_starts}"
        self._num_starts += 1
        for rank in range(self.size):
            parent_end, child_end = _FORK.Pipe()
            process = _FORK.Process(
                target=_serve, args=(rank, self.size, child_end, rendezvous), daemon=True
            )
            process.start()
            child_end.close()
            self._processes.append(process)
            self._pipes.append(parent_end)

    def close(self) -> None:
        """End the processes; the next problem would start new ones."""
        for process in self._processes:
            process.terminate()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []


def _serve(rank: int, size: int, pipe: Connection, rendezvous: Path) -> None:
    # The variables of TorchElastic. The port is not used: ranks meet in a file.
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
    # Undo the handler of a TorchElastic agent in the parent.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    world = launched_world()
    rank_zero_only.rank = rank
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
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
