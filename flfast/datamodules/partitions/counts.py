"""Counts: how many examples of each class every client gets, and who then owns which example.

K clients, C classes, N examples. A partition decides counts [K, C]; `assign` does the rest.
"""

import numpy as np


def check_enough(num_examples: int, *, num_clients: int, min_samples: int) -> None:
    """Refuse more clients than the examples can serve.

    Raises:
        ValueError: if `num_clients * min_samples` exceeds `num_examples`.
    """
    needed = num_clients * min_samples
    if needed > num_examples:
        raise ValueError(
            f"partition.min_samples={min_samples} needs {needed} examples for "
            f"{num_clients} clients, there are {num_examples}; lower it or partition.num_clients"
        )


def class_ids(labels: np.ndarray) -> np.ndarray:
    """Labels renumbered so that the classes that occur are 0, 1, ...; int64 [N].

    >>> class_ids(np.array([7, 3, 7])).tolist()
    [1, 0, 1]
    """
    return np.unique(labels, return_inverse=True)[1]


def even_counts(total: int, num_parts: int) -> np.ndarray:
    """`total` in parts that differ by at most 1, int64 [num_parts].

    >>> even_counts(8, 3).tolist()
    [3, 3, 2]
    """
    return total // num_parts + (np.arange(num_parts) < total % num_parts)


def largest_remainder(shares: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Whole numbers nearest to `shares * totals` that sum to the totals exactly, int64 [R, D].

    Args:
        shares: [R, D], each row sums to 1.
        totals: integers [R].

    >>> largest_remainder(np.array([[0.5, 0.3, 0.2]]), np.array([4])).tolist()
    [[2, 1, 1]]
    """
    exact = shares * totals[:, None]
    counts = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1)
    return counts + (rank < (totals - counts.sum(axis=1))[:, None])


def raise_to_minimum(counts: np.ndarray, min_samples: int) -> np.ndarray:
    """Counts [K, C] with the same column sums, in which every row sums to at least `min_samples`.

    The client with the most examples gives of its most frequent class. A gift fills the receiver,
    empties one class of the giver or ends its giving, so there are at most K * (C + 2) gifts.

    Args:
        counts: int64 [K, C] with a sum of at least `K * min_samples`.
        min_samples: examples.
    """
    counts = counts.copy()
    sizes = counts.sum(axis=1)
    for client in np.flatnonzero(sizes < min_samples):
        while sizes[client] < min_samples:
            giver = sizes.argmax()
            label = counts[giver].argmax()
            spare = min(counts[giver, label], sizes[giver] - min_samples)
            gift = min(spare, min_samples - sizes[client])
            counts[giver, label] -= gift
            counts[client, label] += gift
            sizes[giver] -= gift
            sizes[client] += gift
    return counts


def shuffled_by_class(classes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions of all examples sorted by class, in random order within a class, int64 [N]."""
    order = rng.permutation(len(classes))
    return order[np.argsort(classes[order], kind="stable")]


def assign(classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Owner of every example, int64 [N]: random examples, as many of each class as counted.

    Args:
        classes: int64 [N] in [0, C).
        counts: int64 [K, C]; column c sums to the number of examples of class c.
        rng: the only source of randomness.
    """
    num_clients, num_classes = counts.shape
    owner = np.empty(len(classes), dtype=np.int64)
    clients = np.tile(np.arange(num_clients), num_classes)
    owner[shuffled_by_class(classes, rng)] = np.repeat(clients, counts.T.ravel())
    return owner
