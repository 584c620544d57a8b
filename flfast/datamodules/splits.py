"""Splits every client's examples into training, validation and test sets."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flfast.datamodules.examples import Examples
from flfast.datamodules.offers import digest_of_targets, labels_of, offers_to
from flfast.state.injection import asks_for, call_with
from flfast.state.randomness import generator, uniforms


class Split(NamedTuple):
    """Examples and clients that are held out from training.

    Attributes:
        val: share of every client's examples for validation, in [0, 1). Model selection uses
            these examples only.
        test: share for the client's own test set, in [0, 1), if the dataset has no test examples
            of that client.
        clients: clients that never take part: a number, or a share in [0, 1).
        few_shot: most training examples of each class per client; None for all. The others are
            not used.
        server_examples: training examples that the server has and no client, drawn before the
            partition.
    """

    val: float
    test: float
    clients: int | float = 0
    few_shot: int | None = None
    server_examples: int = 0


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


def split_clients(
    indices: np.ndarray,
    owner: np.ndarray,
    *,
    num_clients: int,
    fractions: dict[str, np.ndarray | float],
    place: np.ndarray,
    overlap: int | None = None,
) -> dict[str, ClientIndices]:
    """Split every client's examples, int64 [M], in the order of their random places [M].

    With an `overlap`, examples are in the order of time instead. Held-out ones are a client's last
    ones, and so many before them are left out, since they share values with them.

    Fractions are held-out shares by name of the split: a number, or one per client [K].

    Returns:
        The splits in `fractions`, and `train` with all other examples: at least one per client.
    """
    place = place if overlap is None else -np.arange(len(owner))
    order, gap = np.lexsort((place, owner)), overlap or 0
    indices, owner = indices[order], owner[order]
    sizes = np.bincount(owner, minlength=num_clients)
    rank = _rank(owner)
    left = sizes - 1  # one example stays for training
    start = np.zeros(num_clients, dtype=np.int64)
    taken = np.zeros(len(owner), dtype=bool)
    splits = {}
    for name, fraction in fractions.items():
        most = np.maximum(left - gap, 0)
        count = np.clip(np.floor(sizes * np.asarray(fraction) + 0.5).astype(np.int64), 0, most)
        mask = (rank >= start[owner]) & (rank < (start + count)[owner])
        splits[name] = group_by_client(indices[mask], owner[mask], num_clients)
        count += gap * (count > 0)
        start, left = start + count, left - count
        taken |= rank < start[owner]
    return {"train": group_by_client(indices[~taken], owner[~taken], num_clients), **splits}


def _rank(owner: np.ndarray) -> np.ndarray:
    """How many examples of the same client are before each one, int64 [M]; owners ascend."""
    sizes = np.bincount(owner)
    return np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner]


def own_places(owner: np.ndarray, client: int, seed: int) -> np.ndarray:
    """Random places of examples that a client can draw without knowing the others', [M].

    A place is a function of the seed, the client's number, and how many of its examples are
    before. Owner 0 has the number `client`.
    """
    order = np.argsort(owner, kind="stable")
    place = np.empty(len(owner))
    place[order] = uniforms(seed, "split", ((owner[order] + client) << 32) + _rank(owner[order]))
    return place


def few_of_each_class(split: ClientIndices, labels: np.ndarray, *, most: int) -> ClientIndices:
    """At most `most` examples of each class, the first ones, that every client has."""
    owner = split.owner()
    _, kinds = np.unique(labels[split.indices], return_inverse=True)
    cell = owner * (kinds.max(initial=0) + 1) + kinds
    order = np.argsort(cell, kind="stable")
    place = np.arange(len(order)) - np.searchsorted(cell[order], cell[order])
    kept = np.sort(order[place < most])
    return group_by_client(split.indices[kept], owner[kept], len(split.offsets) - 1)


class SplitExamples(NamedTuple):
    """The assignment of examples to clients, server and test sets. Every array is int64.

    Attributes:
        splits: `train`, `val` and `test` by client.
        server: training examples of the server, ascending.
        owner: client of each training example that is not the server's, in the data's order.
        digest: hash of the targets of these examples, which identifies the data.
    """

    splits: dict[str, ClientIndices]
    central_test: np.ndarray
    server: np.ndarray
    owner: np.ndarray
    digest: str


def split_examples(
    examples: Examples,
    partition: Callable[..., np.ndarray],
    *,
    seed: int,
    split: Split,
    client: int | None = None,
) -> SplitExamples:
    """Divide the examples among the server, the clients and the central test set.

    The dataset's own validation set is the central one, and none is held out beside it.

    The dataset's own test set is the central one. But if its examples have owners, and the
    partition leaves each of the dataset's clients whole, they belong to the client that has their
    owner. If some have no owner, -1, all are central.

    `client` is the number of the client whose process this is. If the partition makes one client
    only, this is it, and all examples are its own. They are split as in a process that has the
    examples of all clients.
    """
    num = len(examples.targets)
    is_test = np.zeros(num, bool) if examples.is_test is None else examples.is_test
    used = np.ones(num, bool) if examples.unused is None else ~examples.unused
    used[val_set(examples)] = False
    given, held_out = np.flatnonzero(~is_test & used), np.flatnonzero(is_test & used)
    server = draw_for_server(given, split.server_examples, generator(seed, "server"))
    pool = np.setdiff1d(given, server, assume_unique=True)
    if examples.owner is not None and asks_for(partition, "owner"):
        lost = np.setdiff1d(examples.owner[given], examples.owner[pool])
        if len(lost):
            raise ValueError(
                f"split.server_examples={len(server)} leaves no training example to client "
                f"{lost[0]}; allowed: fewer, or another partition"
            )
    rng = generator(seed, "partition")
    digest = digest_of_targets(examples, pool)
    offers = offers_to(partition, examples, pool)
    owner = call_with(partition, **offers, rng=rng, digest=digest).astype(np.int64)
    num_clients = int(owner.max()) + 1
    sizes = np.bincount(owner, minlength=num_clients)
    if not sizes.all():
        raise ValueError(f"client {int(sizes.argmin())} of {num_clients} has no training example")
    number = client if num_clients == 1 else None
    own_test = np.zeros(0 if number is None else len(held_out), dtype=np.int64)
    if examples.owner is not None and number is None:
        own_test = _client_of(examples.owner[held_out], examples.owner[pool], owner)
    has_test = np.bincount(own_test, minlength=num_clients) > 0
    place = generator(seed, "split").random(len(owner))
    names = np.zeros(len(pool), np.int64) if examples.owner is None else examples.owner[pool]
    if len(_client_of(names, names, owner)):  # each of its clients may be in its own process
        place = own_places(owner, number or 0, seed)
    shares: dict[str, np.ndarray | float]
    shares = {
        "test": np.where(has_test, 0.0, split.test),
        "val": split.val if examples.is_val is None else 0.0,
    }
    overlap = examples.overlap
    splits = split_clients(
        pool, owner, num_clients=num_clients, fractions=shares, place=place, overlap=overlap
    )
    if split.few_shot is not None:
        labels = labels_of(examples, f"split.few_shot={split.few_shot}", "null")
        splits["train"] = few_of_each_class(splits["train"], labels, most=split.few_shot)
    if not len(own_test):
        return SplitExamples(splits, held_out, server, owner, digest)
    test = splits["test"]
    tests, whose = np.concatenate([test.indices, held_out]), np.append(test.owner(), own_test)
    splits["test"] = group_by_client(tests, whose, num_clients)
    return SplitExamples(splits, np.zeros(0, dtype=np.int64), server, owner, digest)


def val_set(examples: Examples) -> np.ndarray:
    """The dataset's own validation set, int64."""
    return np.flatnonzero(examples.is_val if examples.is_val is not None else ())


def _client_of(names: np.ndarray, known: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Client of each of M examples, int64 [M]; [0] if the partition divides the data's clients."""
    nothing = np.zeros(0, dtype=np.int64)
    if not len(names) or names.min() < 0:
        return nothing
    client = np.full(max(names.max(), known.max()) + 1, -1, dtype=np.int64)
    client[known] = owner
    found = client[names]
    return found if found.min() >= 0 and np.array_equal(client[known], owner) else nothing


def draw_for_server(pool: np.ndarray, num: int, rng: np.random.Generator) -> np.ndarray:
    """`num` examples of the pool for the server, int64 [num], ascending.

    Raises:
        ValueError: if no example would be left.
    """
    if num and num >= len(pool):
        raise ValueError(
            f"split.server_examples={num} leaves none of {len(pool)} training examples to the "
            f"clients; allowed: 0 to {len(pool) - 1}"
        )
    return np.sort(rng.choice(pool, num, replace=False))


def hold_out(
    num_clients: int, num_or_share: int | float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Clients that never take part, and all others; both int64, ascending.

    The former are a number of clients, or a share in [0, 1), of at least one client unless 0.

    Raises:
        ValueError: if no client would be left.
    """
    num = max(round(num_or_share * num_clients), 1) if 0 < num_or_share < 1 else int(num_or_share)
    if num >= num_clients:
        raise ValueError(
            f"sampler.holdout_clients={num_or_share} leaves none of {num_clients} clients to "
            f"train; allowed: 0 to {num_clients - 1}, or a share in [0, 1)"
        )
    held_out = np.zeros(num_clients, dtype=bool)
    held_out[rng.choice(num_clients, num, replace=False)] = True
    return np.flatnonzero(held_out), np.flatnonzero(~held_out)
