"""Devices with lognormal speeds and bandwidths, as measured on phones.

Lai, Dai, Singapuram, Liu, Zhu, Madhyastha, Chowdhury: FedScale: Benchmarking Model and System
Performance of Federated Learning at Scale. ICML 2022. https://arxiv.org/abs/2105.11367
"""

import numpy as np

from flfast.federation.devices.device import (
    Devices,
    bytes_per_second,
    daily_beginnings,
    lognormal_factors,
)
from flfast.state.options import Availability, NonNegative, Speed, Spread


def lognormal(  # noqa: PLR0913 - one parameter an option
    clients: np.ndarray,
    *,
    speed: Speed,
    speed_spread: Spread,
    down_mbit: Speed | None,
    up_mbit: Speed | None,
    bandwidth_spread: Spread,
    fixed: NonNegative,
    available: Availability,
    hazard: NonNegative,
    seed: int,
) -> Devices:
    """Speed, download and upload bandwidth are independent of each other.

    The time of the day at which clients begin to be available is uniform.
    """
    speeds = speed * lognormal_factors(seed, "device speed", clients, speed_spread)
    down = lognormal_factors(seed, "device download", clients, bandwidth_spread)
    up = lognormal_factors(seed, "device upload", clients, bandwidth_spread)
    same = np.ones(len(clients))
    return Devices(
        fixed=fixed * same,
        per_example=1 / speeds,
        down=bytes_per_second(down_mbit) * down,
        up=bytes_per_second(up_mbit) * up,
        available=available * same,
        begins=daily_beginnings(seed, clients),
        hazard=hazard * same,
    )
