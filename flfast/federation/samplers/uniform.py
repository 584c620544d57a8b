"""Uniform sampling without replacement, with dropout after selection."""

import numpy as np

from flfast.federation.samplers.cohort import Cohort, cohort_size, drop_out
from flfast.state.options import BelowOne, Count, PositiveUpToOne


def uniform(
    num_clients: int,
    *,
    fraction: PositiveUpToOne,
    count: Count | None,
    dropout: BelowOne,
    rng: np.random.Generator,
) -> Cohort:
    """Cohort of a round; the cost is O(cohort), independent of the population.

    Args:
        num_clients: size of the population.
        fraction: share of the population, rounded to the nearest number of clients, at least 1.
        count: number of clients; None uses the fraction.
        dropout: probability that a chosen client drops out, independently of the others.
        rng: the round's generator.

    Raises:
        ValueError: if count exceeds the population.
    """
    size = cohort_size(num_clients, fraction=fraction, count=count)
    chosen = rng.choice(num_clients, size, replace=False, shuffle=False)
    return drop_out(chosen, dropout, rng)
