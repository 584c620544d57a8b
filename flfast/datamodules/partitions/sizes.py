"""Quantity skew: IID labels, client sizes that follow a law or are given.

The laws are those of flwr-datasets' partitioners: a client's size is linear, square or exponential
in its number. Log-normal sizes (`sizes=equal` and `sigma` > 0) are those of FedLab: Zeng, Liang,
Hu, Wang, Xu, "FedLab: A Flexible Federated Learning Framework", JMLR 24 (100), 2023.
"""

import numpy as np

from flfast.datamodules.partitions.client_sizes import Sizes, client_sizes
from flfast.state.options import Count, Spread


def sizes(
    num_examples: int,
    *,
    num_clients: Count,
    sizes: Sizes,
    sigma: Spread,
    min_samples: Count,
    rng: np.random.Generator,
) -> np.ndarray:
    """Owner of every example, int64 [N]; client 0 is the smallest if a law makes sizes grow.

    Args:
        num_examples: N.
        num_clients: K, size of the population.
        sizes: law, or a number for each client; only their ratios count.
        sigma: standard deviation of the logarithm of sizes around that; 0 for exact sizes.
        min_samples: least examples of a client. The largest clients give to those with fewer.
        rng: the only source of randomness.

    Raises:
        ValueError: if there are too few examples, or numbers for other than K clients.
    """
    counts = client_sizes(
        num_examples,
        num_clients=num_clients,
        sizes=sizes,
        sigma=sigma,
        min_samples=min_samples,
        rng=rng,
    )
    return rng.permutation(np.repeat(np.arange(num_clients), counts))
