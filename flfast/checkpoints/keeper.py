"""Checkpoints while a run goes on: tensors are copied between rounds, a thread writes them.

Client states in files are not copied, since memory may not hold them: the run waits until the
system has taken them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from flfast.checkpoints import files
from flfast.checkpoints.folders import (
    SERVER,
    beyond,
    checkpoint_dir,
    checkpoints_dir,
    clients_file,
    finished,
    outdated,
    unfinished,
)
from flfast.checkpoints.policy import COST_SHARE, Policy, best_round
from flfast.checkpoints.signals import StoppedError, StopRequests
from flfast.distributed.world import World, gather, sum_over_ranks
from flfast.state.store import ClientStates
from flfast.state.tree import Tree, tree_map

if TYPE_CHECKING:
    from flfast.federation.loop import Federation

log = logging.getLogger(__name__)

TABLES = ("metrics.csv", "clients.csv")

POLL_S = 0.01
"""Seconds between two looks for other ranks' files."""


class _Writing(NamedTuple):
    """A checkpoint on its way to the disk.

    Attributes:
        round_idx: of the checkpoint.
        about: for `about.json`.
        best: round that stays beside the newest ones.
        given_up: set when a rank could not write its part.
        taken: set when nobody reads this rank's client states any more.
    """

    round_idx: int
    about: dict[str, Any]
    best: int | None
    given_up: Event
    taken: Event


class Checkpoints:
    """Hooks of a round that leave checkpoints and end a run that is told to stop.

    A checkpoint that cannot be written is a warning; those that are there stay as they are.

    Args:
        policy: when, and which ones stay.
        run_dir: of the run, the same folder on every rank.
        states: what this rank's clients keep.
        world: the ranks of the run.
        about: facts for `about.json`, plain values.
        requests: whether somebody asks for an end.
    """

    def __init__(
        self,
        policy: Policy,
        run_dir: Path,
        states: ClientStates,
        world: World,
        about: dict[str, Any],
        requests: StopRequests,
    ) -> None:
        self._policy, self._run_dir = policy, run_dir
        self._states, self._world, self._about = states, world, about
        self._requests = requests
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: _Writing | None = None
        self._written: Future[float] | None = None
        self._cost, self._since = 0.0, time.perf_counter()
        self._warned = False

    def on_run_start(self, federation: Federation) -> None:
        """Remove what no run can go on from: folders half written, rounds done anew."""
        self._since = time.perf_counter()
        if self._world.rank == 0 and self._policy.every != 0:
            done = len(federation.history) - 1
            for path in (*unfinished(self._run_dir), *beyond(self._run_dir, done)):
                files.remove(path)

    def on_round_end(
        self, federation: Federation, row: Mapping[str, Any], clients: Mapping[int, Any]
    ) -> None:
        """Leave a checkpoint if one is due; collective.

        Raises:
            StoppedError: if any rank was told to stop.
        """
        last = row["round"] == federation.rounds
        told, due = self._requests.received is not None, self._due(federation)
        states = [told, due, self._busy(), self._failure() is not None]
        told, due, busy, failed = (num > 0 for num in sum_over_ranks(self._world, states))
        if failed or not busy:
            self._settle(failed=failed)
        leaves = self._policy.every != 0 and row["round"] > 0
        if due or (told and leaves):
            self._wait()
            self._begin(federation)
        if told or last:
            self._wait()
        if told:
            left = leaves and bool(finished(self._run_dir))
            self._say_how_to_go_on(int(row["round"]), left=left)
            raise StoppedError

    def close(self) -> None:
        """Wait for the disk; what a rank did not write its part of, nobody will."""
        if self._writing is not None:
            self._writing.given_up.set()
        self._thread.shutdown(wait=True)

    def _due(self, federation: Federation) -> bool:
        if self._world.rank:
            return False
        passed = time.perf_counter() - self._since
        affordable = not self._busy() and self._cost <= COST_SHARE * passed
        return self._policy.due(
            federation.history, rounds=federation.rounds, affordable=affordable
        )

    def _busy(self) -> bool:
        return self._written is not None and not self._written.done()

    def _failure(self) -> str | None:
        """Why this rank could not write, if it could not."""
        if self._written is None or not self._written.done():
            return None
        error = self._written.exception()
        if error is not None and not isinstance(error, (OSError, RuntimeError)):
            raise error
        return None if error is None else str(error)

    def _begin(self, federation: Federation) -> None:
        """Copy what belongs into a checkpoint, and have it written; collective."""
        start = time.perf_counter()
        rank, size = self._world.rank, self._world.size
        round_idx = int(federation.history[-1]["round"])
        loggers = federation.loggers if rank == 0 else ()
        ids = {type(logger).__name__: logger.version for logger in loggers}
        parts = {clients_file(rank, size): self._states.state_dict()}
        if rank == 0:
            rows = [_plain(row) for row in federation.history]
            parts[SERVER] = {"server": _copy(federation.server), "history": rows}
        decided = gather(self._world, deepcopy(federation.engine.decided))
        facts = {"round": round_idx, "world_size": size, "loggers": ids, "decided": decided}
        self._writing = _Writing(
            round_idx,
            {**self._about, **facts},
            best_round(federation.history, self._policy.keep_best),
            Event(),
            Event(),
        )
        self._written = self._thread.submit(self._write, self._writing, parts)
        if self._states.in_files:  # which were not copied
            self._writing.taken.wait()
        self._cost, self._since = time.perf_counter() - start, time.perf_counter()

    def _wait(self) -> None:
        """Until what is being written is there, or has failed; collective."""
        if self._written is None:
            return
        if self._world.rank:  # rank 0 waits for all others
            wait([self._written])
        failed = self._world.rank > 0 and self._failure() is not None
        self._settle(failed=sum_over_ranks(self._world, [failed])[0] > 0)

    def _settle(self, *, failed: bool) -> None:
        """Take note of what has been written; `failed` if any rank's part was not."""
        writing, written = self._writing, self._written
        if writing is None or written is None:
            return
        if failed:
            writing.given_up.set()
        wait([written])
        failure = self._failure()
        self._writing = self._written = None
        if failure is None:
            self._cost += written.result()
            self._warned = False
        elif self._world.rank == 0:
            files.remove(self._part(writing.round_idx))
            self._warn(writing.round_idx, failure)

    def _part(self, round_idx: int) -> Path:
        final = checkpoint_dir(self._run_dir, round_idx)
        return final.with_name(f"{final.name}.part")

    def _write(self, writing: _Writing, parts: dict[str, Any]) -> float:
        """In the thread: this rank's part, and on rank 0 what makes it a checkpoint.

        Returns:
            Seconds of processor that it took.
        """
        start = time.thread_time()
        folder = self._part(writing.round_idx)
        try:
            for name in list(parts):  # client states come first
                files.write_tensors(folder / name, parts.pop(name), taken=writing.taken)
        finally:
            writing.taken.set()
        if self._world.rank == 0:
            self._publish(folder, writing)
        return time.thread_time() - start

    def _publish(self, part: Path, writing: _Writing) -> None:
        size = self._world.size
        names = [SERVER, *(clients_file(rank, size) for rank in range(size))]
        while not all((part / name).exists() for name in names):
            if writing.given_up.wait(POLL_S):
                raise OSError("another rank could not write its part")
        for name in TABLES:  # no rows are missing of rounds that a checkpoint has
            files.sync_path(self._run_dir / name)
        final = checkpoint_dir(self._run_dir, writing.round_idx)
        files.publish(part, final, writing.about, names)
        keep = self._policy.keep_last
        for path in outdated(self._run_dir, keep_last=keep, best=writing.best):
            files.remove(path)

    def _warn(self, round_idx: int, reason: str) -> None:
        if not self._warned:
            log.warning(
                "no checkpoint of round %d in %s: %s; training goes on",
                *(round_idx, checkpoints_dir(self._run_dir), reason),
            )
        self._warned = True

    def _say_how_to_go_on(self, round_idx: int, *, left: bool) -> None:
        if not left:
            log.warning("told to stop after round %d, without a checkpoint", round_idx)
            return
        log.warning(
            "told to stop after round %d; to go on, the same command with: "
            "resume=auto hydra.run.dir=%s",
            *(round_idx, self._run_dir),
        )


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without NumPy's own numbers, which files of plain values cannot hold."""
    return {k: v.item() if hasattr(v, "item") else v for k, v in row.items()}


@torch.no_grad()
@torch.inference_mode(mode=False)
def _copy(tree: Tree) -> Tree:
    def copied(leaf: Tensor) -> Tensor:
        return leaf.detach().to("cpu", copy=True)

    return tree_map(copied, tree)
