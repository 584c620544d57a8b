"""Faults of real deployments: uploads that are lost or corrupted.

Bonawitz et al.: Towards Federated Learning at Scale: System Design. MLSys 2019, sections 2 and 9.
https://arxiv.org/abs/1902.01046

Clients that never respond are `sampler.dropout`; slow and failing devices are `devices`.
"""

import logging
from typing import Annotated, Literal

import numpy as np

from flfast.channel.faults.corruption import Corruption, corrupted
from flfast.channel.faults.fault import CORRUPTING, Faults, Faulty, Scaled
from flfast.state.options import UpToOne
from flfast.state.tree import Tree

log = logging.getLogger(__name__)


def simulated(
    *,
    lost: UpToOne,
    broken: Annotated[UpToOne, CORRUPTING],
    corruption: Corruption | Literal["any"],
) -> Faulty:
    """Independent faults of clients and rounds, drawn from the seed.

    Args:
        lost: probability that an upload is lost, after the client trained and kept its state.
        broken: probability that an upload arrives corrupted.
        corruption: how it is corrupted.
    """
    if not lost and not broken:
        log.warning("faults=simulated with lost=0, broken=0 simulates no fault")

    def transit(upload: Tree, scaled: Scaled, rng: np.random.Generator) -> Tree | None:
        is_lost, is_broken = rng.random(2) < (lost, broken)
        if is_lost:
            return None
        return corrupted(upload, scaled, corruption, rng) if is_broken else upload

    return Faults(transit if lost or broken else None, corrupts=broken > 0)
