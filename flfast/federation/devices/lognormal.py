"""Devices with lognormal speeds and bandwidths, as measured on phones.

Lai, Dai, Singapuram, Liu, Zhu, Madhyastha, Chowdhury: FedScale: Benchmarking Model and System
Performance of Federated Learning at Scale. ICML 2022. https://arxiv.org/abs/2105.11367
"""

from dataclasses import dataclass

import numpy as np

from flfast.federation.devices.device import (
    DeviceOptions,
    Devices,
    bytes_per_second,
    lognormal_factors,
)
from flfast.state.options import Spread


@dataclass(frozen=True, kw_only=True)
class Lognormal(DeviceOptions):
    """Speed, download and upload bandwidth are independent of each other; see `DeviceOptions`."""

    speed_spread: Spread
    bandwidth_spread: Spread

    def __call__(self, clients: np.ndarray, *, seed: int) -> Devices:
        """See `DeviceModel`."""
        speeds = self.speed * lognormal_factors(seed, "device speed", clients, self.speed_spread)
        down = lognormal_factors(seed, "device download", clients, self.bandwidth_spread)
        up = lognormal_factors(seed, "device upload", clients, self.bandwidth_spread)
        return Devices(
            fixed=self.fixed * np.ones(len(clients)),
            per_example=1 / speeds,
            down=bytes_per_second(self.down_mbit) * down,
            up=bytes_per_second(self.up_mbit) * up,
            **self.reliability(clients, seed),
        )
