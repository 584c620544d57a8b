"""Poisson sampling: every client takes part with the same probability, independently of others.

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models. ICLR
2018, Algorithm 1. https://arxiv.org/abs/1710.06963

    size of the cohort ~ Binomial(num_clients, fraction), and all cohorts of a size equally likely

A cohort may be empty. The round then leaves the model unchanged.
"""

import numpy as np

from flfast.federation.samplers.cohort import Cohort, drop_out
from flfast.state.options import BelowOne, PositiveUpToOne


def poisson(
    num_clients: int, *, fraction: PositiveUpToOne, dropout: BelowOne, rng: np.random.Generator
) -> Cohort:
    """Cohort of a round; the cost is O(cohort), independent of the population."""
    size = int(rng.binomial(num_clients, fraction))
    chosen = rng.choice(num_clients, size, replace=False, shuffle=False)
    return drop_out(chosen, dropout, rng)
