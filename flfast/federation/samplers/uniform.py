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

    Raises:
        ValueError: if count exceeds the population.
    """
    size = cohort_size(num_clients, fraction=fraction, count=count)
    chosen = rng.choice(num_clients, size, replace=False, shuffle=False)
    return drop_out(chosen, dropout, rng)


def random_size(
    num_clients: int, *, min_fraction: PositiveUpToOne, dropout: BelowOne, rng: np.random.Generator
) -> Cohort:
    """Cohort of a round, whose size is drawn uniformly up to the whole population.

    It is PFLlib's random join ratio.
    """
    least = max(1, round(min_fraction * num_clients))
    count = int(rng.integers(least, num_clients, endpoint=True))
    return uniform(num_clients, fraction=1.0, count=count, dropout=dropout, rng=rng)
