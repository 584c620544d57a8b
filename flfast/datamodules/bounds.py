"""Bounds on what a file or an option may ask for, checked before memory is taken.

`free` is the number of bytes that may be taken; None for the free memory of this process.
"""

import gzip
import io
import shutil
import struct
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from flfast.state.machine import free_memory
from flfast.state.regular_file import require_file

MOST_UNPACKED = 200
"""Most times that a compressed file without a directory may grow. Text grows 3 to 20 times."""

ALWAYS_UNPACKED = 2**26
"""Bytes that any compressed file may have, such as a short file of zeros."""


class MemoryBoundError(ValueError):
    """More memory is needed than is free."""


def require_memory(num_bytes: int, what: str, *, free: int | None = None) -> None:
    """Refuse data that do not fit in memory, before any of them are computed.

    The error, a `MemoryBoundError`, begins with `what`, which names key and value.
    """
    free = free_memory() if free is None else free
    if num_bytes > free:
        raise MemoryBoundError(
            f"{what} needs {_size(num_bytes)}; allowed: up to {_size(free)}, which are free"
        )


def free_disk(folder: Path) -> int:
    """Bytes that are free where a folder is, or will be."""
    place = folder.expanduser().absolute()
    return shutil.disk_usage(next(p for p in [place, *place.parents] if p.exists())).free


def open_gzip(path: Path, *, free: int | None = None) -> io.BufferedReader:
    """The unpacked bytes of a gzip file, as a stream that ends with an error at its bound.

    The size that the file's end claims is compared first, so an honest bomb is never unpacked.

    Raises:
        ValueError: if the file claims or has more than `MOST_UNPACKED` times its size, and more
            than `ALWAYS_UNPACKED` bytes, or more than is free. A read raises it, too.
        OSError: if it cannot be read.
    """
    require_file(path)
    packed = path.stat().st_size
    free = free_memory() if free is None else free
    most = min(max(ALWAYS_UNPACKED, MOST_UNPACKED * packed), free)
    with path.open("rb") as stream:
        stream.seek(max(packed - 4, 0))
        end = stream.read(4)
    if len(end) == 4 and (claimed := struct.unpack("<I", end)[0]) > most:
        raise _too_large(path, claimed, most)
    return io.BufferedReader(_Bounded(path, most))


def check_archive(
    path: Path, names: Collection[str] | None = None, *, free: int | None = None
) -> None:
    """Compare what a zip or npz file, or its members of these names, claim with what is free.

    `zipfile` never unpacks more than a member claims.

    Raises:
        ValueError: if they do not fit, or an array's header claims other than its member.
        zipfile.BadZipFile: if it is no zip file.
        OSError: if it cannot be read.
    """
    require_file(path)
    with zipfile.ZipFile(path) as archive:
        members = [m for m in archive.infolist() if names is None or m.filename in names]
        unpacked = sum(member.file_size for member in members)
        require_memory(unpacked, f"{path} unpacked", free=free)
        for member in members:
            if member.filename.endswith(".npy"):
                with archive.open(member) as stream:
                    _check_header(f"{path}: {member.filename}", stream, member.file_size)


def check_parquet(path: Path, *, free: int | None = None) -> None:
    """Compare what a Parquet file claims with what is free.

    Raises:
        ValueError: if it does not fit; a number takes 8 bytes.
        pyarrow.ArrowException: if it is no Parquet file.
        OSError: if it cannot be read.
    """
    from pyarrow import parquet

    require_file(path)
    about = parquet.read_metadata(path)
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    unpacked = sum(group.total_byte_size for group in groups)
    cells = 8 * about.num_rows * max(about.num_columns, 1)
    require_memory(
        max(unpacked, cells),
        f"{path}, which has {about.num_rows:,} rows of {about.num_columns} columns,",
        free=free,
    )


def _size(num_bytes: int) -> str:
    if num_bytes < 10**9:
        return f"{num_bytes / 1e6:,.0f} MB"
    return f"{num_bytes / 1e9:,.1f} GB"


class _Bounded(io.RawIOBase):
    """The bytes of a gzip file, up to a bound."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__()
        self._path, self._most, self._num = path, most, 0
        self._file = gzip.open(path)  # noqa: SIM115 - closed with this stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(len(buffer))
        self._num += len(content)
        if self._num > self._most:
            raise _too_large(self._path, self._num, self._most)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def _too_large(path: Path, found: int, most: int) -> ValueError:
    return ValueError(
        f"{path} unpacks to {found / 1e6:,.0f} MB or more from {path.stat().st_size:,} bytes; "
        f"allowed: {most / 1e6:,.0f} MB; unpack it yourself if you trust it"
    )


def _check_header(where: str, stream: Any, size: int) -> None:
    """Refuse an array that claims another size than its member of an archive has."""
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"{where}: has an npy header of version {version}; allowed: 1.0, 2.0")
    shape, _, dtype = read(stream)
    claimed = int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize
    if not dtype.hasobject and claimed != size - stream.tell():
        raise ValueError(
            f"{where}: its shape {list(shape)} needs {claimed:,} bytes, it has "
            f"{size - stream.tell():,}"
        )
