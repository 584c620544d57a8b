"""Gives every run a folder of its own, and keeps other runs out of it while it lasts. Torch-free.

Hydra logs into the folder before it calls the run. The lock is therefore taken by a callback of
Hydra, and the default names come from a resolver, `${new_folder:...}`.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from flfast.config.errors import ConfigError
from flfast.config.explain import explain
from flfast.config.folder_lock import FolderLock, missing_folders
from flfast.output.results.outcome import outcome_of, read_result, write_result
from flfast.state.environment import integer
from flfast.state.messages import one_line
from flfast.state.real_folder import literal, real_folder
from flfast.state.stop_requests import StoppedAtEndError

log = logging.getLogger(__name__)


class RunFolder(Callback):
    """Hydra's callback that locks the folders of runs, sweeps, and jobs of sweeps."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Lock a run's folder before Hydra writes into it."""
        folder = real_folder(config.hydra.run.dir)
        config.hydra.run.dir = literal(folder)
        _hold(folder, "hydra.run.dir")

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Lock a sweep's folder before Hydra writes into it."""
        sweep: Any = OmegaConf.to_container(config.hydra.sweep, resolve=False)
        folder = real_folder(config.hydra.sweep.dir)
        config.hydra.sweep.dir = literal(folder)
        # Launchers compose each job anew, which may have values of its own for `${...}`.
        if "${" not in sweep["dir"] or sweep["dir"].startswith("~"):
            quoted = QuotedString(literal(folder), Quote.single).with_quotes()
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted}")
        _hold(folder, "hydra.sweep.dir")

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Release the folder of a sweep's job."""
        folder = real_folder(config.hydra.runtime.output_dir)
        if folder in _held and config.hydra.mode == RunMode.MULTIRUN:
            _held.pop(folder).release()


_held: dict[Path, FolderLock] = {}
"""Locks of this process. Not in the callback, which launchers of sweeps pickle."""

_made: dict[Path, list[Path]] = {}
"""Folders that `new_folder` made for each folder of a run, which are not locked yet."""


def locked_folder() -> str | None:
    """The folder that this process locked last, such as that of a sweep's job."""
    return str(next(reversed(_held))) if _held else None


def is_held(folder: str | Path) -> bool:
    """Whether this process has locked the folder."""
    return real_folder(folder) in _held


def release_folders() -> None:
    """Release all folders that this process has locked."""
    while _held:
        _held.popitem()[1].release()


@contextmanager
def hold_folder(folder: Path, *, key: str) -> Iterator[None]:
    """Context that locks the folder of a run from Python; messages name it by the setting `key`.

    Raises:
        FolderBusyError: if another process holds the lock.
        ConfigError: if this process does, or the folder cannot be written.
    """
    folder = real_folder(folder)
    if folder in _held:
        raise ConfigError(f"{key}={folder}: this process writes there; allowed: another folder")
    _lock(folder, f"{key}={folder}")
    try:
        yield
    finally:
        if folder in _held:
            _held.pop(folder).release()


def lock_job(config: DictConfig) -> None:
    """Lock the folder of a sweep's job; that of a single run is locked already.

    Raises:
        FolderBusyError: if another process holds the lock.
        ConfigError: if the folder cannot be written.
    """
    folder, sweep = real_folder(config.hydra.runtime.output_dir), config.hydra.sweep
    if folder not in _held and config.hydra.mode == RunMode.MULTIRUN:
        place = f"hydra.sweep.dir={real_folder(sweep.dir)} hydra.sweep.subdir={sweep.subdir}"
        _lock(folder, place)


def _lock(folder: Path, setting: str) -> None:
    if not _is_later_rank():  # rank 0's folder is that of the run
        _held[folder] = FolderLock(folder, setting=setting, made=_made.pop(folder, None))


def recorded(folder: Path, train: Callable[[], float | None]) -> float | None:
    """Train a run in a folder that this process has locked, and return its result.

    At its end `result.json` says what has become of it, if it was accepted.
    """
    try:
        value = train()
    except StoppedAtEndError as stop:
        _record(folder, stop.value, stop)
        raise
    except (Exception, SystemExit) as error:
        with suppress(OSError):  # a full disk, for instance, which may be the error itself
            _record(folder, None, error)
        raise
    _record(folder, value, None)
    return value


def _record(folder: Path, value: float | None, error: BaseException | None) -> None:
    lock, said = _held.get(folder), read_result(folder)
    if lock is not None and lock.accepted and said is not None:
        ended = outcome_of(error)
        text = one_line(error) if error is not None and ended == "failed" else ""
        end = said._replace(outcome=ended, value=value, error=text)
        write_result(folder, end)


def _hold(folder: Path, key: str) -> None:
    try:
        _lock(folder, f"{key}={folder}")
    except ConfigError as error:
        # Hydra turns exceptions of callbacks into warnings, except this one.
        sys.exit(explain(error))


def new_folder(name: str) -> str:
    """Make a folder that did not exist, for OmegaConf: `name`, or `name-2`, `name-3`, ...

    Ranks after rank 0 of torchrun or SLURM share `name-ranks`, which only has their logs.
    """
    if _is_later_rank():
        return f"{name}-ranks"
    made = missing_folders(real_folder(name).parent)
    try:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            folder = name if number == 1 else f"{name}-{number}"
            try:
                Path(folder).mkdir()
            except FileExistsError:
                continue
            place = real_folder(folder)
            _made[place] = [place, *made]
            return folder
    except OSError:  # the lock will fail, too, with a message
        pass
    return name


def _is_later_rank() -> bool:
    """Whether torchrun or SLURM started this process as another rank than 0."""
    env = os.environ
    if "RANK" in env:
        return integer("RANK", 0) > 0
    # Only srun sets the variables of a step. Shells of interactive jobs are no ranks.
    is_step = integer("SLURM_STEP_NUM_TASKS", 1) > 1
    is_shell = env.get("SLURM_JOB_NAME") in {"bash", "interactive"}
    return is_step and not is_shell and integer("SLURM_PROCID", 0) > 0


# At import, so that launchers of sweeps know it in their processes, which import the callback.
# With the cache, a config and its copies get the same folder each time.
OmegaConf.register_new_resolver("new_folder", new_folder, use_cache=True, replace=True)
