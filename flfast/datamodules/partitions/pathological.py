"""Pathological label skew: a few classes per client, every example kept.

The setting of McMahan et al., AISTATS 2017, section 3, stated in classes rather than shards. Where
`num_clients * classes_per_client` is no multiple of the classes, some have one holder more.
"""

import numpy as np

from flfast.datamodules.partitions.counts import assign, check_enough, class_ids, even_counts
from flfast.options import Count


def pathological(
    labels: np.ndarray,
    *,
    num_clients: Count,
    classes_per_client: Count,
    min_samples: Count,
    rng: np.random.Generator,
) -> np.ndarray:
    """Owner of every example, int64 [N]; a class is split evenly among its holders.

    Args:
        labels: class of each example, int64 [N].
        num_clients: size of the population.
        classes_per_client: most classes a client has, between C / num_clients and C.
        min_samples: examples every client gets at least.
        rng: the only source of randomness.

    Raises:
        ValueError: if classes would be lost, or a client would have too few examples.
    """
    check_enough(len(labels), num_clients=num_clients, min_samples=min_samples)
    classes = class_ids(labels)
    class_sizes = np.bincount(classes)
    _check_classes(len(class_sizes), num_clients, classes_per_client)
    slots = _slots(class_sizes, num_clients, classes_per_client, rng)
    holds = _deal(slots, num_clients, classes_per_client, rng)
    counts = np.zeros((num_clients, len(class_sizes)), dtype=np.int64)
    for label, size in enumerate(class_sizes):
        holders = rng.permutation(np.flatnonzero(holds[:, label]))
        counts[holders, label] = even_counts(size, len(holders))
    smallest = counts.sum(axis=1).min()
    if smallest < min_samples:
        raise ValueError(
            f"partition.min_samples={min_samples} cannot be met: "
            f"classes_per_client={classes_per_client} leaves a client with {smallest} "
            "examples; lower it or partition.num_clients"
        )
    return assign(classes, counts, rng)


def _check_classes(num_classes: int, num_clients: int, classes_per_client: int) -> None:
    if classes_per_client > num_classes:
        raise ValueError(
            f"partition.classes_per_client={classes_per_client} exceeds the data's classes, "
            f"{num_classes}; lower it"
        )
    if num_clients * classes_per_client < num_classes:
        raise ValueError(
            f"partition.classes_per_client={classes_per_client} lets {num_clients} clients hold "
            f"{num_clients * classes_per_client} of the data's {num_classes} classes; "
            "raise it or partition.num_clients"
        )


def _slots(
    class_sizes: np.ndarray, num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> np.ndarray:
    """Holders of every class, int64 [C] in [1, num_clients], summing to all clients' slots.

    D'Hondt's rule, which keeps the smallest share of a holder as large as can be.
    """
    shares = class_sizes[:, None] / np.arange(1, num_clients + 1)  # [C, num_clients]
    shares[:, 0] = np.inf
    order = rng.permutation(shares.size)
    best = order[np.argsort(-shares.ravel()[order], kind="stable")][
        : num_clients * classes_per_client
    ]
    return np.bincount(best // num_clients, minlength=len(class_sizes))


def _deal(
    slots: np.ndarray, num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> np.ndarray:
    """Who holds which class, bool [num_clients, C].

    Each client takes the classes with the most slots left: no class then has ever more slots than
    clients are left, so that all are dealt.
    """
    left = slots.copy()
    holds = np.zeros((num_clients, len(slots)), dtype=bool)
    for client in rng.permutation(num_clients):
        taken = np.lexsort((rng.random(len(left)), -left))[:classes_per_client]
        holds[client, taken] = True
        left[taken] -= 1
    return holds
