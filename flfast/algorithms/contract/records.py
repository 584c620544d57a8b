"""Records: what the server keeps of each client between rounds."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from flfast.algorithms.contract.uploads import Uploads
from flfast.state.store import ClientStates
from flfast.state.tree import Tree, tree_map


class Record(NamedTuple):
    """What an algorithm lets the server keep of each client.

    Attributes:
        rows: (server state, `Uploads`) -> the new records of the clients that uploaded, each leaf
            [K, ...].
        initial: server state -> what `Records` has of a client that has not uploaded yet.
    """

    rows: Callable[[Tree, Uploads], Tree]
    initial: Callable[[Tree], Tree]


class Records:
    """What the server knows of its clients, for `Algorithm.send`.

    `initial` gives the record of a client that has none yet, in `states`.
    """

    def __init__(self, initial: Callable[[], Tree], states: ClientStates) -> None:
        self._initial, self._states = initial, states

    def __getitem__(self, clients: Sequence[int]) -> Tree:
        """Records of n clients, each leaf [n, ...]; those that have none have the initial one."""
        if not clients:
            return tree_map(lambda leaf: leaf[None][:0], self._initial())
        rows = [self._states.get(client_id) for client_id in clients]
        if any(row is None for row in rows):
            initial = self._initial()
            rows = [initial if row is None else row for row in rows]
        return tree_map(lambda *leaf: torch.stack(leaf), *(row or {} for row in rows))

    def known(self) -> list[int]:
        """Clients that have a record, ascending."""
        return self._states.clients()
