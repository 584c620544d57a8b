"""Quantity skew: IID labels, client sizes from a Dirichlet distribution.

Li, Diao, Chen, He, "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022,
q ~ Dir(beta). They repeat the draw until no client is too small. Here the largest clients give to
small ones.
"""

import numpy as np
from scipy.special import softmax

from flfast.datamodules.partitions.counts import (
    assign,
    check_enough,
    largest_remainder,
    raise_to_minimum,
)
from flfast.datamodules.partitions.dirichlet import dirichlet_logits
from flfast.state.options import Count, Positive


def quantity(
    num_examples: int,
    *,
    num_clients: Count,
    alpha: Positive,
    min_samples: Count,
    rng: np.random.Generator,
) -> np.ndarray:
    """Owner of every example, int64 [N]; client sizes are N * Dir(alpha), labels IID.

    Towards alpha 0, one client has nearly all examples; towards infinity, clients have equal
    sizes.
    """
    check_enough(num_examples, num_clients=num_clients, min_samples=min_samples)
    shares = softmax(dirichlet_logits(np.full((1, num_clients), alpha), rng), axis=1)
    sizes = largest_remainder(shares, np.array([num_examples])).T  # [K, 1]
    one_class = np.zeros(num_examples, dtype=np.int64)
    return assign(one_class, raise_to_minimum(sizes, min_samples), rng)
