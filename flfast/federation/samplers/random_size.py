"""Uniform sampling of a random number of clients, PFLlib's random join ratio."""

import numpy as np

from flfast.federation.samplers.cohort import Cohort
from flfast.federation.samplers.uniform import uniform
from flfast.state.options import BelowOne, PositiveUpToOne


def random_size(
    num_clients: int, *, min_fraction: PositiveUpToOne, dropout: BelowOne, rng: np.random.Generator
) -> Cohort:
    """Cohort of a round, whose size is drawn uniformly up to the whole population."""
    least = max(1, round(min_fraction * num_clients))
    count = int(rng.integers(least, num_clients, endpoint=True))
    return uniform(num_clients, fraction=1.0, count=count, dropout=dropout, rng=rng)
