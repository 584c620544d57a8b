"""Devices that all take the same time, whatever they train and send."""

from functools import partial

import numpy as np

from flfast.federation.devices.device import Devices
from flfast.state.options import NonNegative


def ideal(clients: np.ndarray, *, seconds: NonNegative) -> Devices:
    """Equal devices, which are always available and never fail."""
    same = np.ones(len(clients))
    never, always, fast = 0 * same, same, np.full(len(clients), np.inf)
    return Devices(seconds * same, never, fast, fast, always, never, never)


ONE_SECOND = partial(ideal, seconds=1.0)
"""Devices that need a virtual second for everything."""
