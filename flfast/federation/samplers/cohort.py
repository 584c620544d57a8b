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

    @property
    def why_nobody(self) -> str:
        """Why no client trained, if none did."""
        if len(self.late):
            return "no client was in time; see pace.deadline"
        return "every client dropped out" if len(self.dropped) else "no client was drawn"


def cohort_size(num_clients: int, *, fraction: float, count: int | None) -> int:
    """Number of clients in a cohort: `count`, or the nearest number to the fraction, at least 1.

    Raises:
        ValueError: if count exceeds the population.
    """
    if count is not None and count > num_clients:
        raise ValueError(
            f"sampler.count={count} exceeds the population; allowed: 1 to {num_clients}"
        )
    return count if count is not None else max(1, round(fraction * num_clients))


def drop_out(chosen: np.ndarray, dropout: float, rng: np.random.Generator) -> Cohort:
    """The cohort of chosen clients, int64 [K + D]; each drops out with the same probability."""
    chosen = np.sort(chosen)
    dropped = rng.random(len(chosen)) < dropout
    return Cohort(clients=chosen[~dropped], dropped=chosen[dropped])
