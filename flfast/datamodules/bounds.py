"""Bounds on what a file or an option may ask for, checked before memory is taken.

`free` is the number of bytes that may be taken; None for the free memory of this process.
"""

import gzip
import shutil
import zipfile
from collections.abc import Collection
from pathlib import Path

from flfast.state.machine import free_memory
from flfast.state.regular_file import require_file


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


def open_gzip(path: Path, *, free: int | None = None) -> gzip.GzipFile:
    """A gzip file, opened to be read, if what it says to unpack to fits.

    Raises:
        ValueError: if it does not fit.
        OSError: if it cannot be read.
    """
    require_file(path)
    with path.open("rb") as stream:
        stream.seek(max(path.stat().st_size - 4, 0))
        claimed = int.from_bytes(stream.read(4), "little")
    require_memory(claimed, f"{path} unpacked", free=free)
    return gzip.open(path)


def check_archive(
    path: Path, names: Collection[str] | None = None, *, free: int | None = None
) -> None:
    """Compare what a zip or npz file, or its members of these names, claim with what is free.

    `zipfile` never unpacks more than a member claims.

    Raises:
        ValueError: if they do not fit.
        zipfile.BadZipFile: if it is no zip file.
        OSError: if it cannot be read.
    """
    require_file(path)
    with zipfile.ZipFile(path) as archive:
        members = [m for m in archive.infolist() if names is None or m.filename in names]
    unpacked = sum(member.file_size for member in members)
    require_memory(unpacked, f"{path} unpacked", free=free)


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
    what = f"{path}, which has {about.num_rows:,} rows of {about.num_columns} columns,"
    require_memory(max(unpacked, cells), what, free=free)


def _size(num_bytes: int) -> str:
    if num_bytes < 10**9:
        return f"{num_bytes / 1e6:,.0f} MB"
    return f"{num_bytes / 1e9:,.1f} GB"
