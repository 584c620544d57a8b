"""Sampling without replacement, in proportion to clients' numbers of training examples.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks.
MLSys 2020, Algorithm 1: device k is chosen with probability p_k. https://arxiv.org/abs/1812.06127

    P(the next client is k) = n_k / sum_j n_j    over the clients j that are not chosen yet

The paper then gives uploads equal weights: `algorithm.weighting=uniform`. With `samples`, the
sizes would count twice.

Not offered: Scheme I of Li, Huang, Yang, Wang, Zhang (ICLR 2020), which draws with replacement. It
counts an upload as often as its client was drawn, but a cohort is a set.
"""

import numpy as np

from flfast.federation.samplers.cohort import Cohort, cohort_size, drop_out
from flfast.state.options import BelowOne, Count, PositiveUpToOne


def by_size(
    num_clients: int,
    *,
    fraction: PositiveUpToOne,
    count: Count | None,
    dropout: BelowOne,
    rng: np.random.Generator,
    sizes: np.ndarray,
) -> Cohort:
    """Cohort of a round; the cost is O(population).

    Raises:
        ValueError: if count exceeds the population.
    """
    size = cohort_size(num_clients, fraction=fraction, count=count)
    # Of independent exponential times with rates n_k, the first is that of client k with
    # probability n_k / sum_j n_j, and so on among the others.
    times = rng.standard_exponential(num_clients) / sizes
    return drop_out(np.argpartition(times, size - 1)[:size], dropout, rng)
