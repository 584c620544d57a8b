"""Reads files of tensors, and writes checkpoints. Loading a file runs no code."""

import errno
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import torch

from flfast.checkpoints.folders import ABOUT, SERVER, BrokenCheckpointError, checkpoint_dir
from flfast.output.results.columns import CALLBACK_TABLES
from flfast.state.messages import first_line
from flfast.state.tensor_file import check_tensors, sync, write_tensors

TABLES = ("metrics.csv", *CALLBACK_TABLES)

POLL_S = 0.01
"""Seconds between two checks for other ranks' files."""

_TEMPORARY_ERRORS = {errno.EIO, errno.ENOMEM, errno.ESTALE}
"""Errors of a read that do not mean that the file is damaged."""


def read_tensors(
    path: Path, *, written: str | None = None, mapped: bool = False
) -> dict[str, Any]:
    """Contents of a file written by `write_tensors`, on the CPU.

    `written` is the `digest` of the file that was written; None accepts any. If `mapped`, tensors
    are mapped into memory instead of read.

    Raises:
        BrokenCheckpointError: if the file is truncated or corrupt, another one than was written,
            or would run code.
        OSError: if the file is missing or cannot be read at the moment.
    """
    path.open("rb").close()  # a missing file or a lack of permission is an OSError, not broken
    if not zipfile.is_zipfile(path):
        raise BrokenCheckpointError(f"{path}: is truncated, or not a file of tensors")
    try:
        check_tensors(path)
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()  # torch does not check the checksums
        if wrong is not None:
            raise ValueError(f"{wrong} has a wrong checksum")
        if written not in {None, digest(path)}:
            raise ValueError("is not the file that was written, such as one of another round")
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _TEMPORARY_ERRORS:
            raise
        raise BrokenCheckpointError(f"{path}: {first_line(error)}") from None
    if not isinstance(found, dict):
        raise BrokenCheckpointError(f"{path}: does not hold a dict")
    return found


def digest(path: Path) -> str:
    """SHA-256 of the names, sizes and checksums of everything in a file of tensors.

    The checksums are those that the file itself holds, so that only its last bytes are read.

    Raises:
        OSError: if the file cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [(item.filename, item.file_size, item.CRC) for item in archive.infolist()]
    except zipfile.BadZipFile as error:
        raise OSError(errno.EIO, str(error), str(path)) from None
    return hashlib.sha256(json.dumps(members).encode()).hexdigest()


def sync_path(path: Path) -> None:
    """Flush a folder, or a file that another object has open, to the disk; may be missing."""
    if path.exists():
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that is being written.

    Attributes:
        run_dir: folder of the run.
        round_idx: its round.
        about: facts of this round for `about.json`.
        best: round whose checkpoint is kept besides the newest ones.
        names: files of all ranks.
        links: files of this rank that the checkpoint before has, too.
        aborted: set if another rank could not write its file.
        states_buffered: set once this rank's client states and records may change again.
    """

    run_dir: Path
    round_idx: int
    about: dict[str, Any]
    best: int | None
    names: list[str]
    links: list[Path]
    aborted: Event = field(default_factory=Event)
    states_buffered: Event = field(default_factory=Event)

    @property
    def final(self) -> Path:
        """Its folder when it is complete."""
        return checkpoint_dir(self.run_dir, self.round_idx)

    @property
    def part(self) -> Path:
        """Its folder until it is complete."""
        return self.final.with_name(f"{self.final.name}.part")

    def write(self, contents: dict[str, Any]) -> None:
        """Write this rank's files: client states come first, then records.

        Raises:
            OSError: with the path, if the disk is full or read-only.
        """
        try:
            for path in self.links:
                link(path, self.part / path.name)
            for name in list(contents):
                others = contents.keys() - {SERVER, name}
                buffered = None if others else self.states_buffered
                write_tensors(self.part / name, contents.pop(name), buffered=buffered)
        finally:
            self.states_buffered.set()

    def publish(self, about: dict[str, Any]) -> None:
        """Complete the checkpoint when all ranks have written their files.

        Raises:
            OSError: if another rank could not, or the disk is full.
        """
        while not all((self.part / name).exists() for name in self.names):
            if self.aborted.wait(POLL_S):
                raise OSError("another rank could not write its file")
        for name in TABLES:  # they must not lack rows of rounds that the checkpoint contains
            sync_path(self.run_dir / name)
        publish(self.part, self.final, {**about, **self.about}, self.names)


def link(path: Path, to: Path) -> None:
    """Give a file another name; a copy where the file system has no links."""
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, to)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(path, to)
        sync_path(to)


def publish(part: Path, final: Path, about: dict[str, Any], names: Sequence[str]) -> None:
    """Turn a folder of written files into a checkpoint, by renaming it; replaces one at `final`.

    `about.json` gets `about`, and the sizes and digests of the files.

    Raises:
        OSError: if a file is missing, or the disk is full.
    """
    facts = {
        name: {"bytes": (part / name).stat().st_size, "digest": digest(part / name)}
        for name in names
    }
    with (part / ABOUT).open("wb") as file:
        file.write(json.dumps({**about, "files": facts}, indent=1, default=str).encode())
        sync(file)
    sync_path(part)
    if final.exists():
        remove(final)
    part.rename(final)
    sync_path(final.parent)


def remove(path: Path) -> None:
    """Delete a checkpoint; `about.json` first, so that a partial deletion is not a checkpoint."""
    with suppress(OSError):
        (path / ABOUT).unlink()
    shutil.rmtree(path, ignore_errors=True)
