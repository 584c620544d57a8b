"""Starts the ranks of this machine, and starts them again after one has died."""

import os
import sys
import threading
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from flfast.distributed.child import WatchedName, Work, run_rank, start_child
from flfast.distributed.process_group import RENDEZVOUS


class RankDiedError(RuntimeError):
    """A rank died more often than it may; one line says which, and why."""


def on_ranks(
    size: int, fn: Callable[..., Any], *args: Any, max_restarts: int = 0
) -> dict[int, Any]:
    """Run `fn(*args)` on every rank of a new world; returns the results by rank.

    Args:
        size: number of ranks.
        fn: finds its world in torchrun's environment variables, and enters it by
            `distributed.process_group.enter`. It must be picklable, unless the ranks are forked.
        args: arguments of `fn`.
        max_restarts: how often the whole world is started again after a rank died.

    Raises:
        RankDiedError: if ranks died more than `max_restarts` times.
    """
    with TemporaryDirectory(prefix="flfast-") as folder:
        for attempt in range(max_restarts + 1):
            environment = {
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "GROUP_RANK": "0",
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": "0",  # ranks meet in a file
                RENDEZVOUS: str(Path(folder) / f"attempt-{attempt}"),
                "TORCHELASTIC_RUN_ID": "none",
                "TORCHELASTIC_RESTART_COUNT": str(attempt),
            }
            world = _Attempt(size, environment, fn, args)
            try:
                return world.results()
            except RankDiedError:
                if attempt == max_restarts:
                    raise
            finally:
                world.kill()
    raise AssertionError


def can_fork() -> bool:
    """Whether ranks can be forked now; otherwise they are spawned.

    A forked rank starts in a fraction of a second; a spawned one imports everything again. But a
    forked process would wait for ever for a lock that another thread has at that moment.
    """
    # Neither CUDA nor a thread pool survives a fork.
    safe = sys.platform == "linux" and not torch.cuda.is_initialized()
    return safe and torch.get_num_threads() == 1 and not other_threads()


def other_threads() -> list[str]:
    """Names of the Python threads that run beside this one."""
    this = threading.current_thread()
    return [thread.name for thread in threading.enumerate() if thread is not this]


class _Attempt:
    """One start of the world: each rank's process, and the pipe on which its result arrives."""

    def __init__(
        self, size: int, environment: dict[str, str], fn: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        self._ranks: list[tuple[Any, Connection]] = []
        context: Any = get_context("fork" if can_fork() else "spawn")
        work = Work(fn, args)
        for rank in range(size):
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            ours, theirs = context.Pipe(duplex=False)
            args_of_rank = theirs, os.getpid(), own, work
            process = context.Process(
                target=run_rank, args=args_of_rank, name=WatchedName(f"rank-{rank}")
            )
            self._ranks.append((process, ours))
            start_child(process)
            theirs.close()  # the next rank must not inherit it: its end would not be noticed

    def results(self) -> dict[int, Any]:
        """Wait for all ranks; returns what they returned.

        Raises:
            RankDiedError: as soon as a rank has died.
        """
        found: dict[int, Any] = {}
        size = len(self._ranks)
        while len(found) < size:
            ranks = enumerate(self._ranks)
            waiting = {pipe: number for number, (_, pipe) in ranks if number not in found}
            for pipe in wait(list(waiting)):
                number = waiting[pipe]  # type: ignore[index]
                reason = self._receive(number, found)
                if reason is not None:
                    raise RankDiedError(f"rank {number} of {size} died: {reason}")
        for process, _ in self._ranks:
            process.join()
        return found

    def _receive(self, number: int, results: dict[int, Any]) -> str | None:
        """Take a rank's result; returns the reason if it died instead."""
        process, pipe = self._ranks[number]
        try:
            value, reason = pipe.recv()
        except EOFError:
            process.join()
            code = process.exitcode
            what = f"Signal {-code}" if code < 0 else f"exit code {code}"
            return f"{what}; what it said is above"
        results[number] = value
        return reason

    def kill(self) -> None:
        """End all ranks that are left."""
        for process, pipe in self._ranks:
            if process.pid is not None:
                process.kill()
                process.join()
            pipe.close()
