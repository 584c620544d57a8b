"""How much of its local work each client of a round does. Config group `work`."""

from collections.abc import Callable

import numpy as np

from flfast.state.options import Positive, PositiveUpToOne, UpToOne
from flfast.state.randomness import uniforms

Work = Callable[..., np.ndarray]
"""Keyword arguments -> fractions of the local epochs or steps, in (0, 1], float64 [K].

A work names those that it reads:

- `clients`: ids, int64 [K].
- `round_idx`: the round whose model they start from, from 1.
- `seed`: the run's.
- `training`: virtual seconds of all of a client's local training, float64 [K].
- `around`: virtual seconds of its downloads, uploads and fixed costs, float64 [K].

The cost is O(K). A fraction below 1 is rounded to whole local steps, at least one.
"""


def full(*, clients: np.ndarray) -> np.ndarray:
    """A fraction of 1 for everybody."""
    return np.ones(len(clients))


def by_chance(*, clients: np.ndarray, round_idx: int, seed: int, fraction: UpToOne) -> np.ndarray:
    """A uniform fraction for stragglers and 1 for the others, float64 [K].

    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks.
    MLSys 2020, section 5.2. https://arxiv.org/abs/1812.06127

    There, 0, 50 or 90 % of a round's clients do a uniform number of epochs from 1 to E. Here, each
    client is a straggler with that probability, and does a uniform fraction in (0, 1) of its local
    steps.
    """
    drawn = uniforms(seed, "work", clients, round_idx)
    # Below the fraction, the number is uniform again: one draw decides who, and how much.
    return np.divide(drawn, fraction, out=np.ones(len(clients)), where=drawn < fraction)


def by_speed(
    *, training: np.ndarray, around: np.ndarray, seconds: Positive, smallest: PositiveUpToOne
) -> np.ndarray:
    """The fraction of local training with which a client ends in time, float64 [K].

        clip((seconds - around) / training, smallest, 1)

    A client that is too late even with the smallest fraction does that fraction.
    """
    left = np.maximum(seconds - around, 0.0)
    # Divided only where the result is below 1: training may take no time at all.
    work_fractions = np.divide(left, training, out=np.ones(len(training)), where=training > left)
    return np.maximum(work_fractions, smallest)
