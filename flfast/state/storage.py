"""Columns: the same leaf of many states, one row per state, in memory or in a mapped file."""

import math
import os
from pathlib import Path

import torch
from torch import Size, Tensor


class Column:
    """Rows of one shape and type in memory. The system provides pages at the first write to them.

    Attributes:
        rows: [capacity, ...].
        spare_bytes: most bytes that a stack of such columns may allocate for future rows.
    """

    spare_bytes = 2**30

    def __init__(self, shape: Size, dtype: torch.dtype) -> None:
        self.rows = torch.empty(0, *shape, dtype=dtype)

    def grow(self, capacity: int) -> None:
        """Allocate `capacity` rows and keep the values of the present ones."""
        rows = self.rows.new_empty(capacity, *self.rows.shape[1:])
        rows[: len(self.rows)] = self.rows
        self.rows = rows

    def first(self, num: int) -> Tensor:
        """A copy of the first rows, [num, ...], in a storage of exactly their size."""
        return self.rows[:num].clone()


class FileColumn(Column):
    """Rows in a memory-mapped file, which the system pages in and out; overwrites the file."""

    spare_bytes = 0

    def __init__(self, shape: Size, dtype: torch.dtype, path: Path) -> None:
        super().__init__(shape, dtype)
        self._path = path
        path.write_bytes(b"")

    def grow(self, capacity: int) -> None:
        """See `Column`.

        Raises:
            OSError: if the disk is full. Space is allocated here because writing to mapped
                memory without it kills the process.
        """
        num_bytes = capacity * math.prod(self.rows.shape[1:]) * self.rows.itemsize
        if num_bytes:
            with self._path.open("r+b") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
        self.rows = self.first(capacity)

    def first(self, num: int) -> Tensor:
        """A view of the first rows in the file, which changes with `rows`."""
        shape, dtype = self.rows.shape[1:], self.rows.dtype
        size = num * math.prod(shape)
        if not size:
            return torch.empty(num, *shape, dtype=dtype)
        mapped = torch.from_file(str(self._path), shared=True, size=size, dtype=dtype)
        return mapped.view(num, *shape)
