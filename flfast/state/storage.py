"""Columns: one leaf of many states, a row each, in memory or in a file that is mapped into it."""

import math
import os
from pathlib import Path
from typing import Protocol

import torch
from torch import Size, Tensor


class Column(Protocol):
    """Rows of one shape and type.

    Attributes:
        rows: [capacity, ...].
        room: bytes of a stack's rows that may be made before anybody asks for them.
    """

    rows: Tensor
    room: int

    def grow(self, capacity: int) -> None:
        """Make room for as many rows; those that are there stay."""

    def first(self, num: int) -> Tensor:
        """The first rows, [num, ...], in a storage that holds nothing else."""


class MemoryColumn:
    """Rows in memory; see `Column`. Room that nobody has written to takes none."""

    room = 2**30

    def __init__(self, shape: Size, dtype: torch.dtype) -> None:
        self.rows = torch.empty(0, *shape, dtype=dtype)

    def grow(self, capacity: int) -> None:
        """See `Column`."""
        rows = self.rows.new_empty(capacity, *self.rows.shape[1:])
        rows[: len(self.rows)] = self.rows
        self.rows = rows

    def first(self, num: int) -> Tensor:
        """A copy; see `Column`."""
        return self.rows[:num].clone()


class FileColumn:
    """Rows in a file, which the system reads and writes as memory asks for; see `Column`.

    Args:
        shape: of a row.
        dtype: of a row.
        path: of the file; what it held is lost.
    """

    room = 0

    def __init__(self, shape: Size, dtype: torch.dtype, path: Path) -> None:
        self._path = path
        path.write_bytes(b"")
        self.rows = torch.empty(0, *shape, dtype=dtype)

    def grow(self, capacity: int) -> None:
        """See `Column`.

        Raises:
            OSError: if the disk is full. Found out here: a write to mapped memory would be fatal.
        """
        num_bytes = capacity * math.prod(self.rows.shape[1:]) * self.rows.itemsize
        if num_bytes:
            with self._path.open("r+b") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
        self.rows = self.first(capacity)

    def first(self, num: int) -> Tensor:
        """The file's own: they change with `rows`; see `Column`."""
        shape, dtype = self.rows.shape[1:], self.rows.dtype
        size = num * math.prod(shape)
        if not size:
            return torch.empty(num, *shape, dtype=dtype)
        mapped = torch.from_file(str(self._path), shared=True, size=size, dtype=dtype)
        return mapped.view(num, *shape)
