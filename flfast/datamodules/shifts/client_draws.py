"""Random clusters and numbers of clients, each a function of the seed and the client."""

from typing import Literal

import numpy as np

from flfast.state.randomness import uniforms

Assignment = Literal["cyclic", "random"]
"""How clients get their cluster: in turns, or each at random."""


def clusters(clients: np.ndarray, num: int, assignment: Assignment, *, seed: int) -> np.ndarray:
    """Cluster of each client, int64 [K] in [0, num)."""
    if assignment == "cyclic":
        return clients % num
    return (uniforms(seed, "shift cluster", clients) * num).astype(np.int64)


def around(
    clients: np.ndarray, centre: float, spread: float, purpose: str, *, seed: int
) -> np.ndarray:
    """A number of each client, uniform in [centre - spread, centre + spread], float64 [K].

    Different purposes draw independently.
    """
    return centre + spread * (2.0 * uniforms(seed, purpose, clients) - 1.0)
