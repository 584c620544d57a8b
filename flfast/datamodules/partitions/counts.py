"""Counts of examples of each class per client, and the assignment of examples by counts.

K clients, C classes, N examples. A partition determines counts [K, C], `assign` the owners.
"""

import numpy as np


def check_enough(num_examples: int, *, num_clients: int, min_samples: int) -> None:
    """Refuse a partition that needs more examples than there are."""
    needed = num_clients * min_samples
    if needed > num_examples:
        raise ValueError(
            f"partition.min_samples={min_samples} needs {needed} examples for "
            f"{num_clients} clients, there are {num_examples}; lower it or partition.num_clients"
        )


def class_ids(labels: np.ndarray) -> np.ndarray:
    """Labels, renumbered so that the classes present are 0, 1, ...; int64 [N].

    >>> class_ids(np.array([7, 3, 7])).tolist()
    [1, 0, 1]
    """
    return np.unique(labels, return_inverse=True)[1]


def even_counts(total: int, num_parts: int) -> np.ndarray:
    """Divide `total` into parts that differ by at most 1, int64 [num_parts].

    >>> even_counts(8, 3).tolist()
    [3, 3, 2]
    """
    return total // num_parts + (np.arange(num_parts) < total % num_parts)


def largest_remainder(shares: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Round `shares * totals` so that rows sum to the totals exactly, int64 [R, D].

    Rows of shares [R, D] sum to 1. The largest-remainder method: remainders are rounded up in
    descending order.

    >>> largest_remainder(np.array([[0.5, 0.3, 0.2]]), np.array([4])).tolist()
    [[2, 1, 1]]
    """
    exact = shares * totals[:, None]
    counts = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1)
    return counts + (rank < (totals - counts.sum(axis=1))[:, None])


def raise_to_minimum(counts: np.ndarray, min_samples: int) -> np.ndarray:
    """Move examples from large to small clients until each has `min_samples`, int64 [K, C].

    Counts [K, C] have a sum of at least `K * min_samples`. Column sums stay. The largest client
    gives examples of its most frequent class. Each transfer fills the recipient, empties a class
    of the donor, or leaves the donor with `min_samples`. There are therefore at most K * (C + 2)
    transfers.
    """
    counts = counts.copy()
    sizes = counts.sum(axis=1)
    for client in np.flatnonzero(sizes < min_samples):
        while sizes[client] < min_samples:
            donor = sizes.argmax()
            label = counts[donor].argmax()
            spare = min(counts[donor, label], sizes[donor] - min_samples)
            moved = min(spare, min_samples - sizes[client])
            counts[donor, label] -= moved
            counts[client, label] += moved
            sizes[donor] -= moved
            sizes[client] += moved
    return counts


def shuffled_by_class(classes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions of all examples, sorted by class and shuffled within each class, int64 [N]."""
    order = rng.permutation(len(classes))
    return order[np.argsort(classes[order], kind="stable")]


def assign(classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Owner of every example, int64 [N]: random examples of each class, by counts int64 [K, C].

    Column c of the counts sums to the number of examples of class c.
    """
    num_clients, num_classes = counts.shape
    owner = np.empty(len(classes), dtype=np.int64)
    clients = np.tile(np.arange(num_clients), num_classes)
    owner[shuffled_by_class(classes, rng)] = np.repeat(clients, counts.T.ravel())
    return owner
