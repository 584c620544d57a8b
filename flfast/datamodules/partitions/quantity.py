"""Quantity skew: the same classes everywhere, client sizes from a Dirichlet distribution.

Li, Diao, Chen, He, "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022,
q ~ Dir(beta). Theirs draws again until no client is too small; here the largest
clients give to those instead.
"""

import numpy as np

from flfast.datamodules.partitions.counts import (
    assign,
    check_enough,
    largest_remainder,
    raise_to_minimum,
)
from flfast.datamodules.partitions.simplex import dirichlet_logits, softmax
from flfast.options import Count, Positive


def quantity(
    labels: np.ndarray,
    *,
    num_clients: Count,
    alpha: Positive,
    min_samples: Count,
    rng: np.random.Generator,
) -> np.ndarray:
    """Owner of every example, int64 [N]; client sizes are N * Dir(alpha), labels IID.

    Args:
        labels: class of each example, int64 [N].
        num_clients: size of the population.
        alpha: concentration; towards 0 one client has nearly all, towards infinity all the same.
        min_samples: examples every client gets at least.
        rng: the only source of randomness.
    """
    check_enough(len(labels), num_clients=num_clients, min_samples=min_samples)
    shares = softmax(dirichlet_logits(np.full((1, num_clients), alpha), rng))
    sizes = largest_remainder(shares, np.array([len(labels)])).T  # [K, 1]
    return assign(np.zeros_like(labels), raise_to_minimum(sizes, min_samples), rng)
