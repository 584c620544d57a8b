"""A device model of uneven clients, for tests of virtual time."""

import numpy as np

from flfast.federation.devices.device import Devices
from flfast.state.randomness import uniforms


def uneven(clients, *, seed, hazard=0.0, available=1.0):
    """Speeds that differ by up to a factor of 30, and bandwidths by up to a factor of 3."""
    fast, wide = uniforms(seed, "fast", clients), uniforms(seed, "wide", clients)
    same = np.ones(len(clients))
    return Devices(
        fixed=0.25 * same,
        per_example=0.02 + 0.6 * fast**3,
        down=1e4 * (1 + 2 * wide),
        up=5e3 * (1 + 2 * wide),
        available=available * same,
        begins=86_400 * uniforms(seed, "begins", clients),
        hazard=hazard * same,
    )


def partial_work(*, clients, round_idx, seed):
    """Half of the clients do a part of their work."""
    drawn = uniforms(seed, "test work", clients, round_idx)
    return np.where(drawn < 0.5, 2 * drawn, 1.0)
