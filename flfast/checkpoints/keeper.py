"""Writes checkpoints during a run: tensors are copied between rounds, a thread writes them.

Of client states only those are written that have changed since the checkpoint before, as long as
all changes are small beside the states. A whole file of states that are kept in files is not
copied, since they may not fit in memory: the run waits until they are in its buffers.
"""

import errno
import logging
import os
import shlex
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flfast.checkpoints import files
from flfast.checkpoints.folders import (
    RECORDS,
    SERVER,
    changes_file,
    checkpoint_folders,
    checkpoints_dir,
    clients_file,
    expired_folders,
    newer_folders,
    partial_folders,
)
from flfast.checkpoints.policy import COST_SHARE, Policy, best_round
from flfast.distributed.world import World, gather, sum_over_ranks
from flfast.federation.loop import Federation
from flfast.output.results.columns import CALLBACK_TABLES
from flfast.state.machine import free_memory
from flfast.state.stop_requests import StoppedError, StopRequests
from flfast.state.store import ClientStates, Kept
from flfast.state.tree import Tree, tree_map

log = logging.getLogger(__name__)

SMALL_BYTES = 2**20
"""States of this size are always written whole, which costs nothing worth saving."""

MOST_CHANGES = 50
"""Files of changes after which all states are written again: a resume reads each of them."""

CHANGED_SHARE = 1 / 2
"""Largest size of all files of changes together, as a share of the states."""

MEMORY_SHARE = 1 / 4
"""Share of the free memory that copies of changed states may take if states are in files."""


class CheckpointKeeper:
    """Callback that writes checkpoints, and stops the run on request.

    If a checkpoint cannot be written, a warning is logged, older ones are kept, and training
    continues. `about` gives plain values for `about.json`; the thread that writes calls it once.
    """

    def __init__(
        self,
        policy: Policy,
        run_dir: Path,
        kept: Kept,
        world: World,
        about: Callable[[], dict[str, Any]],
        requests: StopRequests,
    ) -> None:
        self._policy, self._run_dir = policy, run_dir
        self._states, self._records = kept
        self._world, self._about = world, cache(about)
        self._requests = requests
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: files.PendingCheckpoint | None = None
        self._written: Future[float] | None = None
        self._cost_s, self._last_start = 0.0, time.perf_counter()
        self._warned = False
        self._folder: int | None = None
        self._before: Path | None = None  # the last complete checkpoint of this run
        self._rows: list[dict[str, Any]] = []  # of the last checkpoint
        self._parts: dict[str, list[int]] = {}  # bytes of a file of states and of its changes

    def on_run_start(self, federation: Federation) -> None:
        """Delete unfinished checkpoints, and those of rounds that will be trained again."""
        self._last_start = time.perf_counter()
        if self._world.rank == 0 and self._run_dir.is_dir():
            # While it is open, no other folder gets its number.
            self._folder = os.open(self._run_dir, os.O_RDONLY)
        if self._world.rank == 0 and self._policy.every != 0:
            done = len(federation.history) - 1
            for path in (*partial_folders(self._run_dir), *newer_folders(self._run_dir, done)):
                files.remove(path)

    def on_round_end(
        self, federation: Federation, row: Mapping[str, Any], clients: Mapping[int, Any]
    ) -> None:
        """Write a checkpoint if one is due; collective.

        Raises:
            FileNotFoundError: on every rank, if the run's folder was deleted or moved.
            StoppedError: if any rank has received a stop request, except after the last round:
                then the run ends by itself.
        """
        last = row["round"] == federation.last_round
        stop, due = self._requests.received is not None, self._is_due(federation)
        flags = [self._is_gone(), stop, due, self._is_writing(), self._write_error() is not None]
        gone, stop, due, writing, failed = (num > 0 for num in sum_over_ranks(self._world, flags))
        if gone:
            message = f"deleted or moved during the run, in round {row['round']}"
            raise FileNotFoundError(errno.ENOENT, message, str(self._run_dir))
        if failed or not writing:
            self._finish_writing(failed=failed)
        enabled = self._policy.every != 0 and row["round"] > 0
        if due or (stop and enabled):
            self._wait_until_written()
            self._start_writing(federation)
        if stop or last:
            self._wait_until_written()
        if stop and not last:
            exists = enabled and bool(checkpoint_folders(self._run_dir))
            self._log_how_to_resume(int(row["round"]), exists=exists)
            raise StoppedError

    def close(self) -> None:
        """Wait until this rank's file is on the disk, but not for other ranks' files."""
        if self._pending is not None:
            self._pending.aborted.set()
        self._thread.shutdown(wait=True)
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def _is_gone(self) -> bool:
        """Whether rank 0's run folder is no longer the one of the run's start."""
        if self._folder is None:
            return False
        try:
            return not os.path.samestat(self._run_dir.stat(), os.fstat(self._folder))
        except OSError as error:
            return error.errno == errno.ENOENT

    def _is_due(self, federation: Federation) -> bool:
        if self._world.rank:
            return False
        seconds = time.perf_counter() - self._last_start
        affordable = not self._is_writing() and self._cost_s <= COST_SHARE * seconds
        return self._policy.due(
            federation.history, rounds=federation.last_round, affordable=affordable
        )

    def _is_writing(self) -> bool:
        return self._written is not None and not self._written.done()

    def _write_error(self) -> str | None:
        """Why this rank could not write its file, if that has failed."""
        if self._written is None or not self._written.done():
            return None
        error = self._written.exception()
        if error is not None and not isinstance(error, (OSError, RuntimeError)):
            raise error
        return None if error is None else str(error)

    def _start_writing(self, federation: Federation) -> None:
        """Copy the contents of a checkpoint, and let the thread write them; collective."""
        start = time.perf_counter()
        rank, size = self._world.rank, self._world.size
        round_idx = int(federation.history[-1]["round"])
        loggers = federation.loggers if rank == 0 else ()
        ids = {type(logger).__name__: logger.version for logger in loggers}
        contents: dict[str, Any] = {}
        links: list[Path] = []
        is_whole = self._add_states(contents, links, clients_file(rank, size), self._states)
        if rank == 0:
            if self._records:
                is_whole |= self._add_states(contents, links, RECORDS, self._records)
            new = federation.history[len(self._rows) :]  # a round that has ended stays as it is
            self._rows = rows = [*self._rows, *map(_plain_values, new)]
            pace = federation.pace.state_dict()
            pace["versions"] = {n: _copy(part) for n, part in pace.get("versions", {}).items()}
            contents[SERVER] = {
                "server": _copy(federation.server),
                "history": rows,
                "pace": pace,
                "channel": _copy(federation.engine.channel.memory),
            }
        tables = [self._run_dir / name for name in CALLBACK_TABLES]
        own = deepcopy(federation.engine.decided), [*contents, *(path.name for path in links)]
        decided, parts = zip(*gather(self._world, own), strict=True)
        facts = {"round": round_idx, "world_size": size, "loggers": ids, "decided": [*decided]}
        facts["tables"] = {path.name: path.stat().st_size for path in tables if path.exists()}
        best = best_round(federation.history, self._policy.keep_best)
        names = [name for part in parts for name in part]
        pending = files.PendingCheckpoint(self._run_dir, round_idx, facts, best, names, links)
        self._pending = pending
        self._written = self._thread.submit(self._write, pending, contents)
        if is_whole and (self._states.in_files or self._records.in_files):  # they were not copied
            pending.states_buffered.wait()
        self._cost_s, self._last_start = time.perf_counter() - start, time.perf_counter()

    def _add_states(
        self, contents: dict[str, Any], links: list[Path], name: str, states: ClientStates
    ) -> bool:
        """Add all states to the contents, or changes to them and the rest to the links.

        Returns whether it was all of them.
        """
        changed, total = states.changed_bytes()
        parts = self._parts.get(name, []) if self._before else []
        room = CHANGED_SHARE * total - sum(parts[1:])
        if states.in_files:
            room = min(room, MEMORY_SHARE * free_memory())
        is_whole = not parts or len(parts) > MOST_CHANGES or changed >= room
        is_whole = is_whole or total <= SMALL_BYTES
        if self._before and not is_whole:
            earlier = [name, *(changes_file(name, i) for i in range(1, len(parts)))]
            links += [self._before / other for other in earlier]
            contents[changes_file(name, len(parts))] = states.changes()
            self._parts[name] = [*parts, changed]
        else:
            contents[name] = states.state_dict()
            self._parts[name] = [total]
        states.changed.clear()
        return is_whole

    def _wait_until_written(self) -> None:
        """Wait until the pending checkpoint is complete or has failed; collective."""
        if self._written is None:
            return
        if self._world.rank:  # rank 0's thread waits for the files of all others
            wait([self._written])
        failed = self._world.rank > 0 and self._write_error() is not None
        self._finish_writing(failed=sum_over_ranks(self._world, [failed])[0] > 0)

    def _finish_writing(self, *, failed: bool) -> None:
        """Clean up after the pending checkpoint; `failed` if a rank could not write its file."""
        pending, written = self._pending, self._written
        if pending is None or written is None:
            return
        if failed:
            pending.aborted.set()
        wait([written])
        error = self._write_error()
        self._pending = self._written = None
        self._before = None if error or failed else pending.final
        if error is None:
            self._cost_s += written.result()
            self._warned = False
        elif self._world.rank == 0:
            files.remove(pending.part)
            self._warn(pending.round_idx, error)

    def _write(self, pending: files.PendingCheckpoint, contents: dict[str, Any]) -> float:
        """Write this rank's files, rank 0 the checkpoint; returns the thread's CPU seconds."""
        start = time.thread_time()
        pending.write(contents)
        if self._world.rank == 0:
            pending.publish(self._about())
            keep = self._policy.keep_last
            for path in expired_folders(self._run_dir, keep_last=keep, best=pending.best):
                files.remove(path)
        return time.thread_time() - start

    def _warn(self, round_idx: int, reason: str) -> None:
        if not self._warned:
            log.warning(
                "no checkpoint of round %d in %s: %s; training continues",
                *(round_idx, checkpoints_dir(self._run_dir), reason),
            )
        self._warned = True

    def _log_how_to_resume(self, round_idx: int, *, exists: bool) -> None:
        if not exists:
            log.warning("stopped after round %d, without a checkpoint", round_idx)
            return
        log.warning(
            "stopped after round %d; to resume, repeat the command with: resume=auto %s",
            *(round_idx, shlex.quote(f"hydra.run.dir={self._run_dir}")),
        )


def _plain_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with Python's numbers: loading a checkpoint refuses NumPy's types."""
    return {k: v.item() if hasattr(v, "item") else v for k, v in row.items()}


@torch.no_grad()
@torch.inference_mode(mode=False)
def _copy(tree: Tree) -> Tree:
    def copied(leaf: Tensor) -> Tensor:
        return leaf.detach().to("cpu", copy=True)

    return tree_map(copied, tree)
