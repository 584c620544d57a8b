"""Which examples each client has."""

from typing import NamedTuple

import numpy as np


class ClientIndices(NamedTuple):
    """Indices of the examples of all clients, in one array. K clients, M examples.

    Attributes:
        indices: examples, grouped by client, int64 [M].
        offsets: int64 [K + 1]; client k has `indices[offsets[k]:offsets[k + 1]]`.
    """

    indices: np.ndarray
    offsets: np.ndarray

    def indices_of(self, client_id: int) -> np.ndarray:
        """Examples of one client, a view."""
        return self.indices[self.offsets[client_id] : self.offsets[client_id + 1]]

    def sizes(self) -> np.ndarray:
        """Number of examples of each client, int64 [K]."""
        return np.diff(self.offsets)

    def owner(self) -> np.ndarray:
        """Client of each entry of `indices`, int64 [M]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def only(self, clients: np.ndarray) -> "ClientIndices":
        """The examples of the given clients; all other clients have none."""
        if len(clients) == len(self.offsets) - 1:
            return self
        sizes = np.zeros(len(self.offsets) - 1, dtype=np.int64)
        sizes[clients] = self.sizes()[clients]
        kept = self.indices[np.isin(self.owner(), clients)]
        return ClientIndices(kept, np.concatenate([[0], np.cumsum(sizes)]))

    def pooled(self) -> "ClientIndices":
        """One client that has all examples."""
        return ClientIndices(self.indices, np.array([0, len(self.indices)]))

    def with_one_more(self, indices: np.ndarray) -> "ClientIndices":
        """The same clients, and behind the last one another with the given examples."""
        joined = np.concatenate([self.indices, indices])
        return ClientIndices(joined, np.append(self.offsets, len(joined)))


def group_by_client(indices: np.ndarray, owner: np.ndarray, num_clients: int) -> ClientIndices:
    """Group examples int64 [M] by their client, int64 [M] in [0, num_clients)."""
    order = np.argsort(owner, kind="stable")
    offsets = np.zeros(num_clients + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=num_clients), out=offsets[1:])
    return ClientIndices(indices[order], offsets)
