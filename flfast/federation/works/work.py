"""The interface of works: the fraction of local training that each client does."""

from collections.abc import Callable

import numpy as np

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
