"""The contract: what goes wrong with clients that mean well."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flfast.state.tree import Tree


@dataclass(frozen=True)
class Faults:
    """What goes wrong. Whatever happens is drawn from generators of its own, never from time.

    Attributes:
        late: (examples that a client goes through in a round, generator of the client, the same
            in every round) -> whether it misses the deadline; None is nobody.
        transit: (upload, what it would be had the client learned nothing, generator of the round
            and client) -> what arrives, None if nothing does. None is a perfect network.
    """

    late: Callable[[int, np.random.Generator], bool] | None = None
    transit: Callable[[Tree, Tree, np.random.Generator], Tree | None] | None = None


NO_FAULTS = Faults()
