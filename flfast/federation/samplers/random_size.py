"""Uniform sampling of a random number of clients, PFLlib's random join ratio."""

import numpy as np

from flfast.federation.samplers.cohort import Cohort
from flfast.federation.samplers.uniform import uniform
from flfast.state.options import BelowOne, PositiveUpToOne


def random_size(
    num_clients: int, *, min_fraction: PositiveUpToOne, dropout: BelowOne, rng: np.random.Generator
) -> Cohort:
    """Cohort of a round, whose size is drawn uniformly up to the whole population.

    Args:
        num_clients: size of the population.
        min_fraction: share of the population in the smallest cohort, rounded to the nearest
            number of clients, at least 1.
        dropout: probability that a chosen client drops out, independently of the others.
        rng: the round's generator.
    """
    least = max(1, round(min_fraction * num_clients))
    count = int(rng.integers(least, num_clients, endpoint=True))
    return uniform(num_clients, fraction=1.0, count=count, dropout=dropout, rng=rng)
