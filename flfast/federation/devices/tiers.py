"""Devices in tiers: within a tier all are equal, and each tier is slower than the fastest.

Chai, Ali, Zawad, Truex, Anwar, Baracaldo, Zhou, Ludwig, Yan, Cheng: TiFL: A Tier-based Federated
Learning System. HPDC 2020. https://arxiv.org/abs/2001.09249
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from flfast.federation.devices.device import DeviceOptions, Devices, bytes_per_second
from flfast.state.options import PositiveUpToOne
from flfast.state.randomness import uniforms

Slowdown = Annotated[float, Ge(1), Le(1e6)]


@dataclass(frozen=True, kw_only=True)
class Tiers(DeviceOptions):
    """Each client is in a tier that is drawn for it alone, so sizes of tiers are random.

    See `DeviceOptions`, which are those of a tier of slowdown 1. `slowdown` is of all of a
    client's time: fixed seconds, training, downloads and uploads.
    """

    shares: list[PositiveUpToOne]
    slowdown: list[Slowdown]

    def __call__(self, clients: np.ndarray, *, seed: int) -> Devices:
        """See `DeviceModel`.

        Raises:
            ValueError: with key, value and what is allowed, if the lists do not describe tiers.
        """
        _check(list(self.shares), list(self.slowdown))
        # The last sum may be rounded to less than 1.
        bounds = np.cumsum(np.array(self.shares, dtype=np.float64))[:-1]
        tier = np.searchsorted(bounds, uniforms(seed, "device tier", clients), side="right")
        times = np.array(self.slowdown, dtype=np.float64)[tier]
        return Devices(
            fixed=self.fixed * times,
            per_example=times / self.speed,
            down=bytes_per_second(self.down_mbit) / times,
            up=bytes_per_second(self.up_mbit) / times,
            **self.reliability(clients, seed),
        )


def _check(shares: list[float], slowdown: list[float]) -> None:
    if len(shares) != len(slowdown):
        raise ValueError(
            f"devices.shares={shares} devices.slowdown={slowdown}: have lengths {len(shares)} and "
            f"{len(slowdown)}; allowed: lists of equal length, a value for each tier"
        )
    if abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f"devices.shares={shares}: sum to {sum(shares):g}; allowed: numbers in (0, 1] that "
            f"sum to 1"
        )
