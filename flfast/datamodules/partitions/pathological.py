"""Pathological label skew: a few classes per client; no example is lost.

The setting of McMahan et al., AISTATS 2017, section 3, in terms of classes instead of shards. A
class is held by a number of clients that is roughly proportional to its size.
"""

import numpy as np

from flfast.datamodules.partitions.counts import assign, check_enough, class_ids, even_counts
from flfast.state.options import Count


def pathological(
    labels: np.ndarray,
    *,
    num_clients: Count,
    classes_per_client: Count,
    min_samples: Count,
    rng: np.random.Generator,
) -> np.ndarray:
    """Owner of every example, int64 [N]; a class is split evenly among its holders.

    Raises:
        ValueError: if classes would be lost, or a client would have too few examples.
    """
    check_enough(len(labels), num_clients=num_clients, min_samples=min_samples)
    classes = class_ids(labels)
    class_sizes = np.bincount(classes)
    _check_classes(len(class_sizes), num_clients, classes_per_client)
    num_holders = _num_holders(class_sizes, num_clients, classes_per_client, rng)
    holds = _assign_classes(num_holders, num_clients, classes_per_client, rng)
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


def _num_holders(
    class_sizes: np.ndarray, num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> np.ndarray:
    """Number of clients that hold each class, int64 [C] in [1, num_clients].

    They sum to `num_clients * classes_per_client`. D'Hondt's method maximises the smallest share
    that a holder gets of its class.
    """
    shares = class_sizes[:, None] / np.arange(1, num_clients + 1)  # [C, num_clients]
    shares[:, 0] = np.inf
    order = rng.permutation(shares.size)
    best = order[np.argsort(-shares.ravel()[order], kind="stable")][
        : num_clients * classes_per_client
    ]
    return np.bincount(best // num_clients, minlength=len(class_sizes))


def _assign_classes(
    num_holders: np.ndarray, num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> np.ndarray:
    """The classes that each client holds, bool [num_clients, C].

    Each client takes the classes that need the most holders. So, no class ever needs more holders
    than clients remain, and every class gets all of its holders.
    """
    needed = num_holders.copy()
    holds = np.zeros((num_clients, len(num_holders)), dtype=bool)
    for client in rng.permutation(num_clients):
        chosen = np.lexsort((rng.random(len(needed)), -needed))[:classes_per_client]
        holds[client, chosen] = True
        needed[chosen] -= 1
    return holds
