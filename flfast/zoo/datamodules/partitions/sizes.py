"""Quantity skew: IID labels, client sizes that follow a law or are given.

The laws are those of flwr-datasets' partitioners: a client's size is linear, square or exponential
in its number. Log-normal sizes (`sizes=equal` and `sigma` > 0) are those of FedLab: Zeng, Liang,
Hu, Wang, Xu, "FedLab: A Flexible Federated Learning Framework", JMLR 24 (100), 2023.
"""

from typing import Literal

import numpy as np
from scipy.special import softmax

from flfast.datamodules.partitions.counts import check_enough, largest_remainder, raise_to_minimum
from flfast.state.options import Count, Positive, Spread
from flfast.zoo.state.csv_file import shortened

Sizes = Literal["equal", "linear", "square", "exponential"] | list[Positive]
"""Size of client k = 0, 1, ..., in any unit: 1, k + 1, (k + 1)^2, e^k, or one number each."""


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

    The largest clients give to those with fewer than `min_samples`.

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


def client_sizes(
    num_examples: int,
    *,
    num_clients: Count,
    sizes: Sizes,
    sigma: Spread,
    min_samples: Count,
    rng: np.random.Generator,
) -> np.ndarray:
    """Examples of each client, int64 [K], at least `min_samples`; they sum to `num_examples`.

    Only the ratios of sizes count. Each is multiplied by a log-normal draw, whose logarithm has
    the standard deviation `sigma`.

    Raises:
        ValueError: if there are too few examples, or numbers for other than K clients.
    """
    check_enough(num_examples, num_clients=num_clients, min_samples=min_samples)
    logits = _log_sizes(num_clients, sizes) + sigma * rng.standard_normal(num_clients)
    exact = largest_remainder(softmax(logits)[None], np.array([num_examples])).T  # [K, 1]
    return raise_to_minimum(exact, min_samples)[:, 0]


def _log_sizes(num_clients: int, sizes: Sizes) -> np.ndarray:
    """Logarithms of sizes, [K]; the sizes of the exponential law may overflow."""
    rank = np.arange(1.0, num_clients + 1)
    if sizes == "exponential":
        return rank
    if isinstance(sizes, str):
        return {"equal": 0, "linear": 1, "square": 2}[sizes] * np.log(rank)
    if len(sizes) != num_clients:
        raise ValueError(
            f"partition.sizes={shortened(str(list(sizes)))}: {len(sizes)} numbers for "
            f"partition.num_clients={num_clients}; allowed: {num_clients} numbers > 0, "
            f"or equal, linear, square, exponential"
        )
    return np.log(np.array(list(sizes), dtype=np.float64))
