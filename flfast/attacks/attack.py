"""The contract: what malicious clients do, and which clients they are."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from flfast.randomness import generator


@dataclass(frozen=True)
class Attack:
    """What attackers do. They train and keep client states like everyone else.

    Attributes:
        fraction: share of the population that attacks, rounded to whole clients.
        upload: (leaf of the update, generator of this round and client) -> poisoned leaf. The
            update is the upload minus its origin. None leaves uploads as they are.
        labels: (labels int64 [M] of a client's training examples, C) -> poisoned labels; None
            leaves them.
    """

    fraction: float = 0.0
    upload: Callable[[Tensor, np.random.Generator], Tensor] | None = None
    labels: Callable[[Tensor, int], Tensor] | None = None


NO_ATTACK = Attack()


def choose_attackers(clients: np.ndarray, fraction: float, *, seed: int) -> frozenset[int]:
    """Draw the attackers from the seed; they are the same in every round.

    Args:
        clients: int64 [K] to choose from.
        fraction: share of them.
        seed: of the run.
    """
    rng = generator(seed, "attackers")
    chosen = rng.choice(clients, round(fraction * len(clients)), replace=False)
    return frozenset(chosen.tolist())
