"""The contract: what malicious clients do, and which clients they are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from torch import Tensor

from flfast.datamodules.backdoor import Backdoor
from flfast.state.capabilities import NEUTRAL, Capabilities, breaking, needing
from flfast.state.randomness import generator

ATTACKS = needing("messages")
COLLUDES = ATTACKS | needing("equal uploads")
FLIPS = ATTACKS | breaking(
    "it changes classes",
    *("language", "regression", "multilabel", "survival", "forecasting", "segmentation"),
)


@dataclass(frozen=True)
class Attack:
    """What attackers do. They train and keep client states like everyone else.

    Attributes:
        fraction: share of the population that attacks, rounded to whole clients.
        upload: (leaf of the update, generator of this round and client) -> poisoned leaf. The
            update is a leaf of the upload, which is a change. None leaves uploads as they are.
        collude: (changes of the cohort's A attackers [A, D], its clients K, generator of the
            round) -> poisoned changes [A, D]. A change is an upload, as a
            vector. Attackers know each other's honest changes, and nobody else's. A may be 0.
            None lets every attacker decide alone.
        labels: (labels int64 [M] of a client's training examples, C) -> poisoned labels; None
            leaves them.
        backdoor: what attackers teach the model by poisoned examples; None is nothing. The
            server's model is evaluated with it, too.
    """

    fraction: float = 0.0
    upload: Callable[[Tensor, np.random.Generator], Tensor] | None = None
    collude: Callable[[Tensor, int, np.random.Generator], Tensor] | None = None
    labels: Callable[[Tensor, int], Tensor] | None = None
    backdoor: Backdoor | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What it needs and breaks."""
        if self.labels or self.backdoor:
            return FLIPS
        if self.collude:
            return COLLUDES
        return ATTACKS if self.upload else NEUTRAL


Poison = Annotated[Attack, ATTACKS]
Collusion = Annotated[Attack, COLLUDES]
ClassPoison = Annotated[Attack, FLIPS]


NO_ATTACK = Attack()


def boosted(scale: float) -> Callable[[Tensor, np.random.Generator], Tensor] | None:
    """`Attack.upload` that scales the update; None if the scale is 1."""
    return None if scale == 1 else lambda change, rng: scale * change


def colluding(fraction: float, change: Callable[[Tensor, int], Tensor]) -> Attack:
    """An attack in which all attackers of a cohort upload the same change.

    `change` gives it [D], of the A >= 1 attackers' honest changes [A, D] and the cohort's size K.
    """

    def collude(changes: Tensor, num_clients: int, rng: np.random.Generator) -> Tensor:
        if not len(changes):
            return changes
        return change(changes, num_clients).to(changes.dtype).repeat(len(changes), 1)

    return Attack(fraction, collude=collude)


def choose_attackers(clients: np.ndarray, fraction: float, *, seed: int) -> frozenset[int]:
    """Draw a fraction of the clients from the seed; they are the same in every round."""
    rng = generator(seed, "attackers")
    chosen = rng.choice(clients, round(fraction * len(clients)), replace=False)
    return frozenset(chosen.tolist())


def none() -> Attack:
    """No client attacks."""
    return NO_ATTACK
