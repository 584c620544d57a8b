"""The contract: what clients that mean harm do, and who they are."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from flfast.randomness import generator


@dataclass(frozen=True)
class Attack:
    """What attackers do. They train like all others, and keep their states.

    Attributes:
        fraction: share of the population that attacks, rounded to the nearest number of clients.
        upload: (a leaf of what the upload changes, generator of the round and client) -> what is
            uploaded as change instead; None is the upload as it is.
        labels: (labels int64 [M] of a client's training examples, C) -> those that it learns
            from; None leaves them.
    """

    fraction: float = 0.0
    upload: Callable[[Tensor, np.random.Generator], Tensor] | None = None
    labels: Callable[[Tensor, int], Tensor] | None = None


NO_ATTACK = Attack()


def choose_attackers(clients: np.ndarray, fraction: float, *, seed: int) -> frozenset[int]:
    """Clients that attack, the same in every round; a function of the seed.

    Args:
        clients: int64 [N] to choose from.
        fraction: share of them.
        seed: of the run.
    """
    rng = generator(seed, "attackers")
    chosen = rng.choice(clients, round(fraction * len(clients)), replace=False)
    return frozenset(chosen.tolist())
