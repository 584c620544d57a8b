"""Files in untrusted folders: only regular files are opened, and no link is followed.

A named pipe would block whoever opens it, a device has no end, and a link leads anywhere.
Torch-free.
"""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def opener(path: str, flags: int) -> int:
    """For `open(path, mode, opener=opener)`: opens a file, and nothing else.

    Raises:
        OSError: if the path is a link, a folder, a named pipe, a socket or a device.
    """
    try:
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a link; allowed: a file", path) from None
        if error.errno == errno.ENXIO:  # a pipe without a reader, a socket
            raise OSError(errno.EINVAL, "is no file", path) from None
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "is no file", path)
    return number


def require_file(path: str | Path) -> None:
    """Refuse a path that is no regular file, before it is opened; follows the user's links.

    Raises:
        OSError: if the path is a named pipe, a socket or a device, or does not exist.
    """
    mode = os.stat(path).st_mode  # noqa: PTH116 - called for every image
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder has its own error
        raise OSError(errno.EINVAL, "is no file", str(path))


@contextmanager
def reading(what: str, *further: type[Exception]) -> Iterator[None]:
    """Context in which a file of data is read; errors are ValueErrors that begin with `what`.

    These are `OSError`, `ValueError`, which bytes that are no UTF-8 raise, and further types.
    """
    kinds: tuple[type[Exception], ...] = (OSError, ValueError, *further)
    try:
        yield
    except kinds as error:
        raise ValueError(f"{what}: {error}") from None


def read_text(path: Path) -> str:
    """The text of a file of data, in UTF-8; links of the user are followed.

    Raises:
        OSError: if it cannot be read, or is no file.
        UnicodeDecodeError: if it is no UTF-8.
    """
    require_file(path)
    return path.read_text(encoding="utf-8")


def read_file(path: Path) -> bytes:
    """The bytes of a file in a run's folder.

    Raises:
        OSError: with the path, if it cannot be read, or is no file.
    """
    with open(path, "rb", opener=opener) as file:
        return file.read()


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Context of an empty folder; what was written into it is moved to `folder` at the end.

    A file there is replaced, and so is a link, which is not followed. If the context raises,
    `folder` stays as it was.

    Raises:
        OSError: if it cannot be written.
    """
    place = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    try:
        yield place
        for path in place.iterdir():
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def make_folder(folder: Path, *, named: bool) -> None:
    """Make a folder to write into, unless it is there; one that the user named may be a link.

    Raises:
        OSError: if it is a link, or cannot be made.
    """
    if not named and folder.is_symlink():
        raise OSError(errno.ELOOP, "is a link; allowed: a folder, or output=PATH", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
