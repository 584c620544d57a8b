"""The cohort: the clients of one round."""

from typing import NamedTuple

import numpy as np


class Cohort(NamedTuple):
    """Who was chosen. K clients that train, D that dropped out, L that are too slow.

    Attributes:
        clients: int64 [K], ascending.
        dropped: int64 [D], received the broadcast and never answered.
        late: int64 [L], received it and were told to stop at the deadline.
    """

    clients: np.ndarray
    dropped: np.ndarray
    late: np.ndarray = np.zeros(0, dtype=np.int64)
