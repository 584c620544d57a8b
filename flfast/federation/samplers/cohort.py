"""The cohort: the clients of one round."""

from typing import NamedTuple

import numpy as np


class Cohort(NamedTuple):
    """The clients that were drawn: K train, D drop out, L miss the deadline.

    All of them receive the broadcast.

    Attributes:
        clients: clients that train, int64 [K], ascending.
        dropped: clients that never answer, int64 [D].
        late: clients that are stopped at the deadline, int64 [L].
    """

    clients: np.ndarray
    dropped: np.ndarray
    late: np.ndarray = np.zeros(0, dtype=np.int64)
