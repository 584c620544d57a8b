"""Some clients of each round do a random fraction of their work.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks.
MLSys 2020, section 5.2. https://arxiv.org/abs/1812.06127

There, 0, 50 or 90 % of a round's clients do a uniform number of epochs from 1 to E. Here, each
client is a straggler with that probability, and does a uniform fraction in (0, 1) of its local
steps.
"""

import numpy as np

from flfast.state.options import UpToOne
from flfast.state.randomness import uniforms


def by_chance(*, clients: np.ndarray, round_idx: int, seed: int, fraction: UpToOne) -> np.ndarray:
    """A uniform fraction for stragglers and 1 for the others, float64 [K]."""
    drawn = uniforms(seed, "work", clients, round_idx)
    # Below the fraction, the number is uniform again: one draw decides who, and how much.
    return np.divide(drawn, fraction, out=np.ones(len(clients)), where=drawn < fraction)
