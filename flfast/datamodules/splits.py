"""Splits every client's examples into training, validation and test sets."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flfast.datamodules.examples import ClientIndices, Examples, group_by_client
from flfast.datamodules.offers import digest_of_targets, labels_of, offers_to
from flfast.state.injection import asks_for, call_with
from flfast.state.randomness import generator, uniforms


class Split(NamedTuple):
    """How examples are divided: what is held out from training, and who has the rest.

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
        pooled: train one client that has all training examples: the centralised baseline.
        only: (number, K) of the only client whose examples are kept, of a deployment with K
            clients; None keeps all.
    """

    val: float
    test: float
    clients: int | float = 0
    few_shot: int | None = None
    server_examples: int = 0
    pooled: bool = False
    only: tuple[int, int] | None = None


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
) -> SplitExamples:
    """Divide the examples among the server, the clients and the central test set.

    The dataset's own validation set is the central one, and none is held out beside it.

    The dataset's own test set is the central one. But if its examples have owners, and the
    partition leaves each of the dataset's clients whole, they belong to the client that has their
    owner. If some have no owner, -1, all are central.

    If the partition makes one client only, and this is the process of `split.only`, all examples
    are that client's. They are split as in a process that has the examples of all clients.
    """
    given, central = _training_and_test(examples)
    server = draw_for_server(given, split.server_examples, generator(seed, "server"))
    pool = np.setdiff1d(given, server, assume_unique=True)
    if examples.owner is not None and asks_for(partition, "owner"):
        lost = np.setdiff1d(examples.owner[given], examples.owner[pool])
        if len(lost):
            raise ValueError(
                f"split.server_examples={len(server)} leaves no training example to client "
                f"{lost[0]}; allowed: fewer, or another partition"
            )
    digest = digest_of_targets(examples, pool)
    offers = offers_to(partition, examples, pool)
    rng = generator(seed, "partition")
    owner = call_with(partition, **offers, rng=rng, digest=digest).astype(np.int64)
    sizes = np.bincount(owner)
    if not sizes.all():
        raise ValueError(f"client {int(sizes.argmin())} of {len(sizes)} has no training example")
    number = split.only[0] if split.only is not None and len(sizes) == 1 else None
    tests = _clients_of_tests(examples, central, pool, owner, number)
    place = _places(examples, pool, owner, number, seed)
    splits = _split_pool(examples, pool, owner, tests, place, split)
    if len(tests):
        test = splits["test"]
        indices, whose = np.append(test.indices, central), np.append(test.owner(), tests)
        splits["test"] = group_by_client(indices, whose, len(sizes))
        central = central[:0]
    return SplitExamples(splits, central, server, owner, digest)


def _training_and_test(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """The examples for training and those of the dataset's test set, int64 each."""
    num = len(examples.targets)
    is_test = np.zeros(num, bool) if examples.is_test is None else examples.is_test
    used = np.ones(num, bool) if examples.unused is None else ~examples.unused
    used[val_set(examples)] = False
    return np.flatnonzero(~is_test & used), np.flatnonzero(is_test & used)


def _clients_of_tests(
    examples: Examples, tests: np.ndarray, pool: np.ndarray, owner: np.ndarray, number: int | None
) -> np.ndarray:
    """Client of each example of the dataset's test set, int64 [M]; [0] if the set is central."""
    if number is not None:
        return np.zeros(len(tests), dtype=np.int64)
    if examples.owner is None:
        return np.zeros(0, dtype=np.int64)
    return _client_of(examples.owner[tests], examples.owner[pool], owner)


def _places(
    examples: Examples, pool: np.ndarray, owner: np.ndarray, number: int | None, seed: int
) -> np.ndarray:
    """Random places of the training pool, by which held-out examples are chosen, [M]."""
    names = np.zeros(len(pool), np.int64) if examples.owner is None else examples.owner[pool]
    if len(_client_of(names, names, owner)):  # each of its clients may be in its own process
        return own_places(owner, number or 0, seed)
    return generator(seed, "split").random(len(owner))


def _split_pool(
    examples: Examples,
    pool: np.ndarray,
    owner: np.ndarray,
    tests: np.ndarray,
    place: np.ndarray,
    split: Split,
) -> dict[str, ClientIndices]:
    """`train`, `val` and `test` of the training pool; clients that have `tests` draw none."""
    num_clients = int(owner.max()) + 1
    has_test = np.bincount(tests, minlength=num_clients) > 0
    shares: dict[str, np.ndarray | float] = {
        "test": np.where(has_test, 0.0, split.test),
        "val": split.val if examples.is_val is None else 0.0,
    }
    splits = split_clients(
        pool,
        owner,
        num_clients=num_clients,
        fractions=shares,
        place=place,
        overlap=examples.overlap,
    )
    if split.few_shot is not None:
        labels = labels_of(examples, f"split.few_shot={split.few_shot}", "null")
        splits["train"] = few_of_each_class(splits["train"], labels, most=split.few_shot)
    return splits


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
