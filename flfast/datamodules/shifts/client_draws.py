"""Random clusters and strengths of clients, each a function of the seed and the client."""

from typing import Literal

import numpy as np

from flfast.state.randomness import uniforms

Assignment = Literal["cyclic", "random"]
"""How clients get their cluster: in turns, or each at random."""

Levels = Literal["equal", "linear", "random"]
"""How strongly clients are shifted: all fully, rising with their number, or each at random."""


def clusters(clients: np.ndarray, num: int, assignment: Assignment, *, seed: int) -> np.ndarray:
    """Cluster of each client, int64 [K] in [0, num)."""
    if assignment == "cyclic":
        return clients % num
    return (uniforms(seed, "shift cluster", clients) * num).astype(np.int64)


def strengths(clients: np.ndarray, levels: Levels, *, seed: int) -> np.ndarray:
    """Share of the full strength that each client has, float64 [K] in [0, 1].

    `linear` is 0 for the first client and 1 for the last one.
    """
    if levels == "random":
        return uniforms(seed, "shift strength", clients)
    if levels == "linear":
        return clients / max(len(clients) - 1, 1)
    return np.ones(len(clients))


def around(
    clients: np.ndarray, centre: float, spread: float, purpose: str, *, seed: int
) -> np.ndarray:
    """A number of each client, uniform in [centre - spread, centre + spread], float64 [K].

    Different purposes draw independently.
    """
    return centre + spread * (2.0 * uniforms(seed, purpose, clients) - 1.0)
