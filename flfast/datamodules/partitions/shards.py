"""Shards of the data sorted by label, assigned to clients at random.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, section 3: 200 shards, 2 for each of 100 clients.
"""

import numpy as np

from flfast.datamodules.partitions.counts import check_enough, even_counts, shuffled_by_class
from flfast.state.options import Count


def shards(
    labels: np.ndarray,
    *,
    num_clients: Count,
    shards_per_client: Count,
    min_samples: Count,
    rng: np.random.Generator,
) -> np.ndarray:
    """Owner of every example, int64 [N]; shard sizes differ by at most 1.

    Raises:
        ValueError: if a client with the smallest shards would have too few examples.
    """
    check_enough(len(labels), num_clients=num_clients, min_samples=min_samples)
    num_shards = num_clients * shards_per_client
    smallest = len(labels) // num_shards * shards_per_client
    if smallest < min_samples:
        raise ValueError(
            f"partition.min_samples={min_samples} cannot be met: {num_shards} shards of "
            f"{len(labels)} examples leave a client with {smallest}; "
            "lower it, partition.shards_per_client or partition.num_clients"
        )
    holder = rng.permutation(num_shards) // shards_per_client
    owner = np.empty(len(labels), dtype=np.int64)
    owner[shuffled_by_class(labels, rng)] = np.repeat(holder, even_counts(len(labels), num_shards))
    return owner
