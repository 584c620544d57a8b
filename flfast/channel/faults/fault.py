"""The contract: how honest clients and their uploads fail."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flfast.state.tree import Tree

Scaled = Callable[[float], Tree]


@dataclass(frozen=True)
class Faults:
    """Faults, drawn from seeded generators and independent of real time.

    Attributes:
        transit: (upload, scaled, generator of this round and client) -> the upload that
            arrives, or None if it is lost. `scaled(factor)` is the upload with its change
            multiplied by a factor. None: a perfect network.
    """

    transit: Callable[[Tree, Scaled, np.random.Generator], Tree | None] | None = None


NO_FAULTS = Faults()


def none() -> Faults:
    """No faults: every upload arrives as it was sent."""
    return NO_FAULTS
