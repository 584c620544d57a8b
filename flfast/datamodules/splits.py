"""Splits: which examples each client trains on, validates with and tests with."""

from typing import NamedTuple

import numpy as np


class ClientIndices(NamedTuple):
    """Index arrays of all clients in one piece. K clients, M examples.

    Attributes:
        indices: int64 [M], example numbers, client after client.
        offsets: int64 [K + 1]; client k has `indices[offsets[k]:offsets[k + 1]]`.
    """

    indices: np.ndarray
    offsets: np.ndarray

    def of(self, client_id: int) -> np.ndarray:
        """Example numbers of one client, a view."""
        return self.indices[self.offsets[client_id] : self.offsets[client_id + 1]]

    def sizes(self) -> np.ndarray:
        """Number of entries of each client, int64 [K]."""
        return np.diff(self.offsets)

    def owner(self) -> np.ndarray:
        """Client of each entry of `indices`, int64 [M]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def pooled(self) -> "ClientIndices":
        """One client that has everything."""
        return ClientIndices(self.indices, np.array([0, len(self.indices)]))


def group_by_client(indices: np.ndarray, owner: np.ndarray, num_clients: int) -> ClientIndices:
    """Group examples by client.

    Args:
        indices: example numbers, int64 [M].
        owner: client of each of them, int64 [M], in [0, num_clients).
        num_clients: K.
    """
    order = np.argsort(owner, kind="stable")
    offsets = np.zeros(num_clients + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=num_clients), out=offsets[1:])
    return ClientIndices(indices[order], offsets)


def split_clients(
    indices: np.ndarray,
    owner: np.ndarray,
    *,
    num_clients: int,
    fractions: dict[str, np.ndarray | float],
    rng: np.random.Generator,
) -> dict[str, ClientIndices]:
    """Split every client's examples at random; the rest is `train`, never empty.

    Args:
        indices: example numbers, int64 [M].
        owner: client of each of them, int64 [M].
        num_clients: K.
        fractions: held-out share per split, a number or one per client [K].
        rng: the only source of randomness.

    Returns:
        `train` and one entry per fraction; together they hold every example once.
    """
    order = np.lexsort((rng.random(len(owner)), owner))
    indices, owner = indices[order], owner[order]
    sizes = np.bincount(owner, minlength=num_clients)
    rank = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner]
    left = sizes - 1  # one example stays for training
    start = np.zeros(num_clients, dtype=np.int64)
    taken = np.zeros(len(owner), dtype=bool)
    splits = {}
    for name, fraction in fractions.items():
        count = np.clip(np.floor(sizes * np.asarray(fraction) + 0.5).astype(np.int64), 0, left)
        mask = (rank >= start[owner]) & (rank < (start + count)[owner])
        splits[name] = group_by_client(indices[mask], owner[mask], num_clients)
        start, left, taken = start + count, left - count, taken | mask
    return {"train": group_by_client(indices[~taken], owner[~taken], num_clients), **splits}
