"""Client states: what clients keep between rounds, stacked, for clients that took part."""

import logging
import shutil
from collections.abc import Hashable
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Size

from flfast.state.stack import Stack, structure
from flfast.state.storage import Column, FileColumn, MemoryColumn
from flfast.state.tree import Tree, leaves, tree_map

log = logging.getLogger(__name__)


class ClientStates:
    """States by client, copied in and out; memory grows with the clients touched.

    States of one structure lie in one stack. A client whose state changes its structure, such as
    one whose optimizer has no state before the first round, moves to another.

    Attributes:
        in_files: whether states lie in files by now.

    Args:
        memory: bytes that may lie in memory; beyond, all states go to files. None is no bound.
        folder: for the files, emptied before the first.
    """

    def __init__(self, memory: int | None = None, folder: Path = Path("client_states")) -> None:
        self._memory, self._folder = memory, folder
        self.in_files = False
        self._numbers = count()
        self._stacks: dict[Hashable, Stack] = {}
        self._places: dict[int, Hashable] = {}

    def get(self, client_id: int) -> Tree | None:
        """A copy of the client's state, or None before its first round."""
        if client_id not in self._places:
            return None
        return self._stacks[self._places[client_id]].get(client_id)

    @torch.no_grad()
    @torch.inference_mode(mode=False)
    def put(self, client_id: int, state: Tree) -> None:
        """Keep a copy of a state.

        Raises:
            OSError: if it goes to a disk that is full.
        """
        place = structure(state)
        if client_id not in self._places or self._places[client_id] != place:
            self._make_room(place, state, 1)
            self.drop(client_id)
            self._places[client_id] = place
        self._stacks[place].put(client_id, state)

    def drop(self, client_id: int) -> None:
        """Forget a state, if there is one."""
        if client_id in self._places:
            place = self._places.pop(client_id)
            self._stacks[place].drop(client_id)
            if not self._stacks[place].clients:
                del self._stacks[place]

    def __len__(self) -> int:
        return len(self._places)

    @torch.no_grad()
    @torch.inference_mode(mode=False)
    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors in dicts and lists: `torch.load` needs no code for it.

        Returns:
            `stacks`: for each, `clients` int64 [K] and `states`, a tree of leaves [K, ...]. What
            lies in memory is copied; what lies in files is not, and is valid until the next `put`.
        """
        return {"stacks": [stack.state_dict() for stack in self._stacks.values()]}

    @torch.no_grad()
    @torch.inference_mode(mode=False)
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Hold the states of a `state_dict` and no others.

        Args:
            saved: `stacks` may be any iterable, with several parts of one structure.
        """
        self._stacks.clear()
        self._places.clear()
        for part in saved["stacks"]:
            clients: list[int] = part["clients"].tolist()
            if not clients:
                continue
            like = tree_map(lambda leaf: leaf[0], part["states"])
            place = structure(like)
            self._make_room(place, like, len(clients))
            self._stacks[place].extend(clients, part["states"])
            self._places.update(dict.fromkeys(clients, place))

    def close(self) -> None:
        """Remove the files; states can still be read as long as this object lives."""
        if self.in_files:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _make_room(self, place: Hashable, like: Tree, num: int) -> None:
        stack = self._stacks.get(place) or Stack(like, self._column)
        row = sum(leaf.nbytes for leaf in leaves(like))
        needed = sum(other.num_bytes for other in self._stacks.values()) + row * num
        try:
            if not self.in_files and self._memory is not None and needed > self._memory:
                self._move_to_files(needed)
                stack = self._stacks.get(place) or Stack(like, self._column)
            stack.reserve(num)
        except OSError as error:
            raise OSError(
                f"client_states: {needed:,} bytes do not fit in {self._folder}: {error.strerror}"
            ) from error
        self._stacks[place] = stack

    def _move_to_files(self, needed: int) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)  # of a run that was killed
        self._folder.mkdir(parents=True)
        self.in_files = True
        log.info(
            "client states are kept in files, %s: %.1f MB were to exceed the %.1f MB they may "
            "take in memory",
            *(self._folder, needed / 1e6, (self._memory or 0) / 1e6),
        )
        for stack in self._stacks.values():
            stack.move(self._column)

    def _column(self, shape: Size, dtype: torch.dtype) -> Column:
        if not self.in_files:
            return MemoryColumn(shape, dtype)
        return FileColumn(shape, dtype, self._folder / f"{next(self._numbers)}.rows")
