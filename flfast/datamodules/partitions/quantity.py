"""Quantity skew: IID labels, client sizes from a Dirichlet distribution.

Li, Diao, Chen, He, "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022,
q ~ Dir(beta). They repeat the draw until no client is too small. Here the largest clients give to
small ones.
"""

import numpy as np

from flfast.datamodules.partitions.dirichlet import dirichlet
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
    return dirichlet(
        np.zeros(num_examples, dtype=np.int64),  # one class
        num_clients=num_clients,
        alpha=alpha,
        min_samples=min_samples,
        balanced=False,
        rng=rng,
    )
