"""IID partition: every client is a random sample of the same size."""

import numpy as np

from flfast.datamodules.partitions.counts import check_enough, even_counts
from flfast.state.options import Count


def iid(
    num_examples: int, *, num_clients: Count, min_samples: Count, rng: np.random.Generator
) -> np.ndarray:
    """Owner of every example, int64 [N]; client sizes differ by at most 1."""
    check_enough(num_examples, num_clients=num_clients, min_samples=min_samples)
    owner = np.repeat(np.arange(num_clients), even_counts(num_examples, num_clients))
    return rng.permutation(owner)
