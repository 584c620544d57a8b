"""Faults as they come in the field: lost and broken uploads, and clients that are too slow.

Bonawitz et al.: Towards Federated Learning at Scale: System Design. MLSys 2019, sections 2 and 9.
https://arxiv.org/abs/1902.01046

Time is virtual: nobody waits. Clients that never answer at all are `sampler.dropout`.
"""

import logging
from typing import Literal

import numpy as np

from flfast.faults.corruption import Corruption, corrupted
from flfast.faults.fault import Faults
from flfast.options import Fraction, NonNegative, Positive
from flfast.state.tree import Tree

log = logging.getLogger(__name__)


def simulated(
    *,
    lost: Fraction,
    broken: Fraction,
    corruption: Corruption | Literal["any"],
    deadline: Positive | None,
    speed: Positive,
    speed_spread: NonNegative,
) -> Faults:
    """Faults that clients and rounds draw independently, from the seed.

    Args:
        lost: probability that a client trains, and keeps its state, but its upload is lost.
        broken: probability that an upload arrives broken.
        corruption: how it is broken.
        deadline: seconds of virtual time after which a client is told to stop; what it did in
            the round is forgotten, its state too. None waits for all.
        speed: examples that the median client trains on in a virtual second.
        speed_spread: standard deviation of the logarithm of the clients' speeds, which stay the
            same over the run.
    """
    if not lost and not broken and deadline is None:
        log.warning("faults=simulated with lost=0, broken=0, deadline=null: nothing goes wrong")

    def late(num_seen: int, rng: np.random.Generator) -> bool:
        own_speed = speed * np.exp(speed_spread * rng.standard_normal())
        return deadline is not None and bool(num_seen > deadline * own_speed)

    def transit(upload: Tree, origin: Tree, rng: np.random.Generator) -> Tree | None:
        is_lost, is_broken = rng.random(2) < (lost, broken)
        if is_lost:
            return None
        return corrupted(upload, origin, corruption, rng) if is_broken else upload

    return Faults(late if deadline is not None else None, transit if lost or broken else None)
