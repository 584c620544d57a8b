"""The cohort: the clients of one round."""

from typing import NamedTuple

import numpy as np


class Cohort(NamedTuple):
    """Who was chosen. K clients that train, D that dropped out.

    Attributes:
        clients: int64 [K], ascending.
        dropped: int64 [D], received the broadcast and never answered.
    """

    clients: np.ndarray
    dropped: np.ndarray
