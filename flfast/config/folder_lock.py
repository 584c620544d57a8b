"""The lock of a run's folder, which undoes what was written for a run that is not accepted.

A run is accepted once it has written its settings (`HydraJob.new_settings`). A command that ends
before has no right to change the folder: log lines and new folders disappear. Torch-free.
"""

import errno
import logging
import os
import platform
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from flfast.config.errors import ConfigError, FolderBusyError
from flfast.output.results.outcome import LOCK
from flfast.state.real_folder import real_folder
from flfast.state.regular_file import opener

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""Seconds to wait for the processes of a run that was just killed."""

SETTINGS = Path(".hydra", "hydra.yaml")
"""The last file of a run's settings that is written; another one than before is of a new run."""

LOGS = ("train.log", "output.log")
"""Files that are open for lines of a command before its run is accepted."""

_LOCKS_MISSING = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class FolderLock:
    """A lock that lasts as long as this process or a forked one, however they end.

    The folder, as `real_folder` has it, is made if it does not exist. `setting` is what the user
    would change to get another one, for messages. `made` are folders that were made for this
    command already, the inner ones first.

    Raises:
        FolderBusyError: if another process holds the lock.
        ConfigError: if the folder cannot be written, or the system has no POSIX file locks.
    """

    def __init__(self, folder: Path, *, setting: str, made: list[Path] | None = None) -> None:
        if find_spec("fcntl") is None:
            raise ConfigError("this system has no POSIX file locks; allowed: on Windows, use WSL")
        self.folder, self._setting = folder, setting
        self._made = made or []
        self._settings = _identity(folder / SETTINGS)
        try:
            self._file = self._locked()
        except OSError as error:
            self._remove_folders()
            raise ConfigError(f"{setting}: cannot be written: {error.strerror}") from None
        self._file.seek(0)
        self._holder = self._file.read()
        self._sizes = {name: _size(folder / name) for name in LOGS}
        self._write(_this_process())

    @property
    def accepted(self) -> bool:
        """Whether a run was accepted while the lock was held."""
        return _identity(self.folder / SETTINGS) != self._settings

    def release(self) -> None:
        """Let other runs use the folder, which is as it was before unless a run was accepted."""
        end_logs(self.folder)
        if not self.accepted:
            self._undo()
        import fcntl

        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()

    def _undo(self) -> None:
        for name, size in self._sizes.items():
            with suppress(FileNotFoundError):
                if not size:
                    (self.folder / name).unlink()
                elif _size(self.folder / name) > size:
                    os.truncate(self.folder / name, size)
        if self._holder:
            self._write(self._holder)
        else:
            (self.folder / LOCK).unlink(missing_ok=True)
        self._remove_folders()

    def _remove_folders(self) -> None:
        with suppress(OSError):  # the first one that is not empty
            for folder in self._made:
                folder.rmdir()

    def _write(self, holder: str) -> None:
        self._file.truncate(0)
        self._file.write(holder)
        self._file.flush()

    def _locked(self) -> TextIO:
        """The lock's file, locked."""
        end = time.monotonic() + PATIENCE_S
        while True:
            self._made = missing_folders(self.folder) or self._made
            self.folder.mkdir(parents=True, exist_ok=True)
            file = open(self.folder / LOCK, "a+", encoding="utf-8", opener=opener)  # noqa: SIM115
            try:
                if self._lock(file, patient=time.monotonic() <= end):
                    return file
            except BaseException:
                file.close()
                raise
            file.close()

    def _lock(self, file: TextIO, *, patient: bool) -> bool:
        """Whether the file is locked now, and still the one of the folder."""
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not patient:
                file.seek(0)
                holder = file.read() or "another run"
                # Two mounts of a disk, for instance, give a folder two names.
                holder = "this process" if holder == _this_process() else holder
                end_logs(self.folder)
                raise FolderBusyError(busy(self._setting, holder)) from None
            time.sleep(0.1)
            return False
        except OSError as error:
            if error.errno not in _LOCKS_MISSING:
                raise
            log.warning("%s has no file locks: nothing keeps another run out of it", self.folder)
            return True
        # Whoever held it before may have removed it, and even its folder.
        found = os.fstat(file.fileno())
        return _identity(self.folder / LOCK) == (found.st_ino, found.st_mtime_ns)


def busy(setting: str, holder: str) -> str:
    """The message for a folder that is in use."""
    return f"{setting}: {holder} writes there; allowed: another folder, or wait until it ends"


def _this_process() -> str:
    return f"process {os.getpid()} on {platform.node()}"


def end_logs(folder: Path) -> None:
    """Let no line of this process follow in logs of the folder."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        file = getattr(handler, "baseFilename", None)  # of a `FileHandler`
        if file is not None and real_folder(file).parent == folder:
            root.removeHandler(handler)
            handler.close()


def missing_folders(folder: Path) -> list[Path]:
    """The folder and those above it that do not exist, the inner ones first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from one that takes its place; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _size(path: Path) -> int:
    """Bytes of a file; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0
