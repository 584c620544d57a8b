"""Keeps the loggers' records of an earlier command until those of this one are made.

Loggers begin a record or a database as they are made, and some refuse afterwards, such as
without a key. Torch-free.

    FOLDER/.records-before.part    being filled
    FOLDER/.records-before         complete: from now on, the folder's records may be new ones
    FOLDER/.records-before.old     the new ones are there: these are being deleted

A kill at any moment leaves one of them at most, and the next command puts the records back, if it
is not the last.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flfast.output.results.run_files import OF_LOGGERS, remove, remove_files

_ASIDE = ".records-before"


@contextmanager
def records_aside(folder: Path, *, kept: bool) -> Iterator[None]:
    """Make new records of loggers inside; if that fails, the folder has those of before.

    Args:
        folder: of the run.
        kept: whether loggers find the records of before, and may go on with them.
    """
    _put_back(folder)  # for a command that was killed in here
    part, complete, old = _places(folder)
    part.mkdir()
    for path in [folder / name for name in OF_LOGGERS if os.path.lexists(folder / name)]:
        if not kept:
            path.rename(part / path.name)
        elif path.is_dir():
            shutil.copytree(path, part / path.name, symlinks=True)
        else:
            shutil.copy2(path, part / path.name)
    part.rename(complete)
    try:
        yield
    except BaseException:
        _put_back(folder)
        raise
    complete.rename(old)
    remove(old)


def _put_back(folder: Path) -> None:
    """Give the folder its records of before, if they are aside."""
    part, complete, old = _places(folder)
    if old.exists():
        remove(old)
    if complete.exists():
        remove_files(folder, OF_LOGGERS)
        complete.rename(part)
    if not part.exists():
        return
    for path in part.iterdir():
        if not os.path.lexists(folder / path.name):
            path.rename(folder / path.name)
    remove(part)


def _places(folder: Path) -> tuple[Path, Path, Path]:
    return folder / f"{_ASIDE}.part", folder / _ASIDE, folder / f"{_ASIDE}.old"
