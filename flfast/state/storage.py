"""Columns: the same leaf of many states, one row per state, in memory or in a mapped file."""

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
        spare_bytes: most bytes that a stack of such columns may allocate for future rows.
    """

    rows: Tensor
    spare_bytes: int

    def grow(self, capacity: int) -> None:
        """Allocate `capacity` rows and keep the values of the present ones."""

    def first(self, num: int) -> Tensor:
        """The first rows, [num, ...], in a storage of exactly their size."""


class MemoryColumn:
    """Rows in memory; see `Column`. The system provides pages at the first write to them."""

    spare_bytes = 2**30

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
    """Rows in a memory-mapped file, which the system pages in and out; see `Column`.

    Args:
        shape: shape of a row.
        dtype: data type of a row.
        path: the file; an existing one is overwritten.
    """

    spare_bytes = 0

    def __init__(self, shape: Size, dtype: torch.dtype, path: Path) -> None:
        self._path = path
        path.write_bytes(b"")
        self.rows = torch.empty(0, *shape, dtype=dtype)

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
        """A view of the file, which changes with `rows`; see `Column`."""
        shape, dtype = self.rows.shape[1:], self.rows.dtype
        size = num * math.prod(shape)
        if not size:
            return torch.empty(num, *shape, dtype=dtype)
        mapped = torch.from_file(str(self._path), shared=True, size=size, dtype=dtype)
        return mapped.view(num, *shape)
