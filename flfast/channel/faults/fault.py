"""The contract: how honest clients and their uploads fail."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from flfast.state.capabilities import NEUTRAL, Capabilities, breaking, needing
from flfast.state.tree import Tree

FAULTY = needing("messages")
CORRUPTING = breaking("the server checks single uploads", "hidden uploads")

Scaled = Callable[[float], Tree]


@dataclass(frozen=True)
class Faults:
    """Faults, drawn from seeded generators and independent of real time.

    Attributes:
        transit: (upload, scaled, generator of this round and client) -> the upload that
            arrives, or None if it is lost. `scaled(factor)` is the upload with its change
            multiplied by a factor. None: a perfect network.
        corrupts: whether uploads may arrive with other values.
    """

    transit: Callable[[Tree, Scaled, np.random.Generator], Tree | None] | None = None
    corrupts: bool = False

    @property
    def capabilities(self) -> Capabilities:
        """What it needs and breaks."""
        faulty = NEUTRAL if self.transit is None else FAULTY
        return faulty | CORRUPTING if self.corrupts else faulty


Faulty = Annotated[Faults, FAULTY]


NO_FAULTS = Faults()


def none() -> Faults:
    """No faults: every upload arrives as it was sent."""
    return NO_FAULTS
