"""Client states: what clients keep between rounds. Only clients that took part have one."""

import logging
import shutil
from collections.abc import Hashable
from contextlib import suppress
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Size

from flfast.state.stack import Column, FileColumn, Stack, structure
from flfast.state.tree import Tree, leaves, tree_map

log = logging.getLogger(__name__)


RESIDUALS = "residuals"
"""Key of a client's state for what compression lost of its uploads, by call."""


def own_state(state: Tree | None) -> Tree | None:
    """The algorithm's entries of a client's state; None before the first one."""
    if state is None or RESIDUALS not in state:
        return state
    return {name: part for name, part in state.items() if name != RESIDUALS} or None


class ClientStates:
    """States by client, copied in and out.

    States of the same structure share a `Stack`. A client moves to another stack if the structure
    of its state changes, for example when its optimizer first has a state.

    `memory` is most bytes in memory; None is unlimited. Beyond, all states move to files in the
    folder, which is emptied when the first one is written.

    Attributes:
        in_files: whether states are kept in files.
        changed: clients whose states were stored or removed since this was last cleared, and
            whether they had one then.
    """

    def __init__(self, memory: int | None = None, folder: Path = Path("client_states")) -> None:
        self._memory, self._folder = memory, folder
        self.in_files = False
        self.changed: dict[int, bool] = {}
        self._numbers = count()
        self._stacks: dict[Hashable, Stack] = {}
        self._structures: dict[int, Hashable] = {}

    def get(self, client_id: int) -> Tree | None:
        """A copy of the client's state, or None before its first round."""
        if client_id not in self._structures:
            return None
        return self._stacks[self._structures[client_id]].get(client_id)

    @torch.no_grad()
    @torch.inference_mode(mode=False)
    def put(self, client_id: int, state: Tree) -> None:
        """Store a copy of a state.

        Raises:
            OSError: if the disk is full.
        """
        key = structure(state)
        self.changed.setdefault(client_id, client_id in self._structures)
        if client_id not in self._structures or self._structures[client_id] != key:
            self._reserve(key, state, 1)
            self.drop(client_id)
            self._structures[client_id] = key
        self._stacks[key].put(client_id, state)

    def drop(self, client_id: int) -> None:
        """Remove the client's state, if it has one."""
        if client_id in self._structures:
            self.changed.setdefault(client_id, True)
            key = self._structures.pop(client_id)
            self._stacks[key].drop(client_id)
            if not self._stacks[key].clients:
                del self._stacks[key]

    def __len__(self) -> int:
        return len(self._structures)

    def clients(self) -> list[int]:
        """Ids of the clients that have a state, ascending."""
        return sorted(self._structures)

    @torch.no_grad()
    @torch.inference_mode(mode=False)
    def state_dict(self) -> dict[str, Any]:
        """All states as dicts and lists of tensors, which `torch.load(weights_only=True)` reads.

        Returns:
            `stacks`: for each, `clients` int64 [K], and `states`, a tree with leaves [K, ...].
            States in memory are copied. States in files are views, valid until the next `put`.
        """
        return {"stacks": [stack.state_dict() for stack in self._stacks.values()]}

    def changed_bytes(self) -> tuple[int, int]:
        """Size of the states that have changed, and of all states."""
        keys = (self._structures.get(client_id) for client_id in self.changed)
        changed = sum(self._stacks[key].row_bytes for key in keys if key is not None)
        return changed, sum(stack.num_bytes for stack in self._stacks.values())

    @torch.no_grad()
    @torch.inference_mode(mode=False)
    def changes(self) -> dict[str, Any]:
        """Copies of the states that have changed, as in `state_dict`, for `apply`.

        Returns:
            `stacks`, and `dropped`, the clients whose states were removed, int64 [K].
        """
        members: dict[Hashable, list[int]] = {}
        for client_id in sorted(self.changed.keys() & self._structures.keys()):
            members.setdefault(self._structures[client_id], []).append(client_id)
        gone = self.changed.keys() - self._structures.keys()
        dropped = sorted(client_id for client_id in gone if self.changed[client_id])
        return {
            "stacks": [self._stacks[key].select(clients) for key, clients in members.items()],
            "dropped": torch.tensor(dropped, dtype=torch.int64),
        }

    def apply(self, changes: dict[str, Any]) -> None:
        """Take over the `changes` of other states; `stacks` may be any iterable."""
        for client_id in changes["dropped"].tolist():
            self.drop(client_id)
        for part in changes["stacks"]:
            for row, client_id in enumerate(part["clients"].tolist()):
                self.put(client_id, tree_map(itemgetter(row), part["states"]))

    @torch.no_grad()
    @torch.inference_mode(mode=False)
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Replace all states by those of a `state_dict`; its stacks may be any iterable."""
        self._stacks.clear()
        self._structures.clear()
        for part in saved["stacks"]:
            clients: list[int] = part["clients"].tolist()
            if not clients:
                continue
            like = tree_map(lambda leaf: leaf[0], part["states"])
            key = structure(like)
            self._reserve(key, like, len(clients))
            self._stacks[key].extend(clients, part["states"])
            self._structures.update(dict.fromkeys(clients, key))

    def close(self) -> None:
        """Remove the files; this object's mappings keep the states readable."""
        if self.in_files:
            shutil.rmtree(self._folder, ignore_errors=True)
            with suppress(OSError):  # other ranks have files there
                self._folder.parent.rmdir()

    def _reserve(self, key: Hashable, like: Tree, num: int) -> None:
        """Make room for `num` more states like `like`, in files if memory does not suffice."""
        stack = self._stacks.get(key) or Stack(like, self._make_column)
        row = sum(leaf.nbytes for leaf in leaves(like))
        needed = sum(other.num_bytes for other in self._stacks.values()) + row * num
        try:
            if not self.in_files and self._memory is not None and needed > self._memory:
                self._move_to_files(needed)
                stack = self._stacks.get(key) or Stack(like, self._make_column)
            stack.reserve(num)
        except OSError as error:
            raise OSError(
                f"client_states: {needed:,} bytes do not fit in {self._folder}: {error.strerror}"
            ) from error
        self._stacks[key] = stack

    def _move_to_files(self, needed: int) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)  # left by a killed run
        self._folder.mkdir(parents=True)
        self.in_files = True
        log.info(
            "client states move to files in %s: %.1f MB exceed the memory limit of %.1f MB",
            *(self._folder, needed / 1e6, (self._memory or 0) / 1e6),
        )
        for stack in self._stacks.values():
            stack.move(self._make_column)

    def _make_column(self, shape: Size, dtype: torch.dtype) -> Column:
        if not self.in_files:
            return Column(shape, dtype)
        return FileColumn(shape, dtype, self._folder / f"{next(self._numbers)}.rows")


class Kept(NamedTuple):
    """The states of clients and the records of the server between rounds.

    Attributes:
        states: client states; on this rank those of its own clients.
        records: the server's records of clients; the same on every rank.
    """

    states: ClientStates
    records: ClientStates
