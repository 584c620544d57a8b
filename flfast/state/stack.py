"""States of the same structure in a table: one column per leaf, one row per client.

Columns are in memory or in mapped files.
"""

import math
import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import torch
from torch import Size, Tensor

from flfast.state.tree import Tree, leaves, named_leaves, tree_map

MIN_SPARE_ROWS = 1024
"""Spare rows that even a small stack allocates, if the columns' `spare_bytes` allow it."""


def structure(tree: Tree) -> Hashable:
    """Names, shapes and dtypes of a tree; trees of equal structure can share a stack."""
    return tuple(
        (name, structure(leaf) if isinstance(leaf, dict) else (leaf.shape, leaf.dtype))
        for name, leaf in tree.items()
    )


def check_same_leaves(tree: Tree, like: Tree, source: str) -> None:
    """Check that two trees have leaves with the same names, shapes and dtypes.

    Raises:
        ValueError: with the first leaf that differs; `source` is where `tree` comes from.
    """
    if structure(tree) == structure(like):
        return
    found, expected = (
        {
            name: f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"
            for name, leaf in named_leaves(part)
        }
        for part in (tree, like)
    )
    differing = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    if not differing:
        raise ValueError(f"{source}: its leaves are in another order than elsewhere")
    name = differing[0]
    raise ValueError(
        f"{source}: leaf {name} is {found.get(name, 'missing')}, elsewhere it is "
        f"{expected.get(name, 'missing')}; all uploads of a round must have the same leaves"
    )


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

    def head(self, num: int) -> Tensor:
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
        self.rows = self.head(capacity)

    def head(self, num: int) -> Tensor:
        """A view of the first rows in the file, which changes with `rows`."""
        shape, dtype = self.rows.shape[1:], self.rows.dtype
        size = num * math.prod(shape)
        if not size:
            return torch.empty(num, *shape, dtype=dtype)
        mapped = torch.from_file(str(self._path), shared=True, size=size, dtype=dtype)
        return mapped.view(num, *shape)


MakeColumn = Callable[[Size, torch.dtype], Column]


class Stack:
    """A table of client states of one structure. Rows of dropped clients are reused."""

    def __init__(self, like: Tree, make_column: MakeColumn) -> None:
        self._like = tree_map(lambda leaf: leaf.to("meta"), like)
        self._columns = [make_column(leaf.shape, leaf.dtype) for leaf in leaves(like)]
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        self._capacity = 0

    @property
    def clients(self) -> list[int]:
        """Clients that have a row."""
        return list(self._rows)

    @property
    def num_bytes(self) -> int:
        """Size of the rows in use; spare rows do not count."""
        return len(self._rows) * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Size of a row."""
        return sum(math.prod(c.rows.shape[1:]) * c.rows.itemsize for c in self._columns)

    def reserve(self, num: int) -> None:
        """Make room for `num` more clients. Spare rows save copies when more of them follow."""
        needed = len(self._rows) + num
        if needed > self._capacity:
            spare_bytes = min((column.spare_bytes for column in self._columns), default=0)
            spare = min(3 * needed + MIN_SPARE_ROWS, spare_bytes // max(self.row_bytes, 1))
            capacity = max(8, needed + max(needed // 2, spare))
            for column in self._columns:
                column.grow(capacity)
            self._free += range(capacity - 1, self._capacity - 1, -1)
            self._capacity = capacity

    def put(self, client_id: int, state: Tree) -> None:
        """Copy a state into the client's row; a new client needs a `reserve`d one."""
        row = self._rows.get(client_id)
        if row is None:
            row = self._rows[client_id] = self._free.pop()
        for column, leaf in zip(self._columns, leaves(state), strict=True):
            column.rows[row].copy_(leaf)

    def get(self, client_id: int) -> Tree:
        """A copy of the client's state."""
        row = self._rows[client_id]
        return self._tree([column.rows[row].clone() for column in self._columns])

    def drop(self, client_id: int) -> None:
        """Free the client's row."""
        self._free.append(self._rows.pop(client_id))

    def state_dict(self) -> dict[str, Any]:
        """All states: `clients` int64 [K], and `states`, a tree with leaves [K, ...].

        Columns in memory are copied. Columns in files are returned as views of the files.
        """
        self._close_gaps()
        clients = sorted(self._rows, key=self._rows.__getitem__)
        states = self._tree([column.head(len(clients)) for column in self._columns])
        return {"clients": torch.tensor(clients, dtype=torch.int64), "states": states}

    def select(self, clients: list[int]) -> dict[str, Any]:
        """Copies of some clients' states, as in `state_dict`."""
        rows = torch.tensor([self._rows[client_id] for client_id in clients], dtype=torch.int64)
        states = self._tree([column.rows.index_select(0, rows) for column in self._columns])
        return {"clients": torch.tensor(clients, dtype=torch.int64), "states": states}

    def _tree(self, values: list[Tensor]) -> Tree:
        """The tree of a value of each column."""
        left = iter(values)
        return tree_map(lambda _: next(left), self._like)

    def extend(self, clients: list[int], states: Tree) -> None:
        """Copy the states of K new clients, leaves [K, ...], into `reserve`d rows."""
        self._close_gaps()
        start, stop = len(self._rows), len(self._rows) + len(clients)
        for column, leaf in zip(self._columns, leaves(states), strict=True):
            column.rows[start:stop].copy_(leaf)
        self._rows |= zip(clients, range(start, stop), strict=True)
        self._free = self._free[: self._capacity - stop]

    def _close_gaps(self) -> None:
        """Move the last rows into free ones, so that the rows in use come first."""
        num = len(self._rows)
        beyond = [client_id for client_id, row in self._rows.items() if row >= num]
        gaps = sorted(set(range(num)).difference(self._rows.values()))
        for client_id, gap in zip(beyond, gaps, strict=True):
            for column in self._columns:
                column.rows[gap].copy_(column.rows[self._rows[client_id]])
            self._rows[client_id] = gap
        self._free = list(range(self._capacity - 1, num - 1, -1))

    def move(self, make_column: MakeColumn) -> None:
        """Copy the rows in use into new columns, without spare rows."""
        self._close_gaps()
        num = len(self._rows)
        moved = []
        for old in self._columns:
            column = make_column(old.rows.shape[1:], old.rows.dtype)
            column.grow(num)
            column.rows.copy_(old.rows[:num])
            moved.append(column)
        self._columns, self._capacity, self._free = moved, num, []
