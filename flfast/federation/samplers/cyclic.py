"""Clients take turns in a fixed random order: cyclic client participation.

Cho, Sharma, Joshi, Xu, Kale, Zhang: On the Convergence of Federated Averaging with Cyclic Client
Participation. ICML 2023. https://arxiv.org/abs/2302.03109

    cohort of round r = the K clients from place (r - 1) * K on in the order, which begins again

If K divides the population, these are fixed groups. The paper then may draw some clients of the
group; here all of them take part.
"""

from functools import lru_cache

import numpy as np

from flfast.federation.samplers.cohort import Cohort, cohort_size, drop_out
from flfast.state.options import BelowOne, Count, PositiveUpToOne
from flfast.state.randomness import generator


def cyclic(  # noqa: PLR0913 - one parameter an option
    num_clients: int,
    *,
    fraction: PositiveUpToOne,
    count: Count | None,
    dropout: BelowOne,
    rng: np.random.Generator,
    seed: int,
    round_idx: int,
) -> Cohort:
    """Cohort of a round; the cost is O(cohort), after O(population) in the first round.

    Raises:
        ValueError: if count exceeds the population.
    """
    size = cohort_size(num_clients, fraction=fraction, count=count)
    places = ((round_idx - 1) * size + np.arange(size)) % num_clients
    return drop_out(_order(num_clients, seed)[places], dropout, rng)


@lru_cache(maxsize=1)
def _order(num_clients: int, seed: int) -> np.ndarray:
    return generator(seed, "turns").permutation(num_clients)
