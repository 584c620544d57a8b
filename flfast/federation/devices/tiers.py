"""Devices in tiers: within a tier all are equal, and each tier is slower than the fastest.

Chai, Ali, Zawad, Truex, Anwar, Baracaldo, Zhou, Ludwig, Yan, Cheng: TiFL: A Tier-based Federated
Learning System. HPDC 2020. https://arxiv.org/abs/2001.09249
"""

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from flfast.federation.devices.device import Devices, bytes_per_second, daily_beginnings
from flfast.state.options import Availability, NonNegative, PositiveUpToOne, Speed
from flfast.state.randomness import uniforms

Slowdown = Annotated[float, Ge(1), Le(1e6)]


def tiers(  # noqa: PLR0913 - one parameter an option
    clients: np.ndarray,
    *,
    shares: list[PositiveUpToOne],
    slowdown: list[Slowdown],
    speed: Speed,
    down_mbit: Speed | None,
    up_mbit: Speed | None,
    fixed: NonNegative,
    available: Availability,
    hazard: NonNegative,
    seed: int,
) -> Devices:
    """Each client is in a tier that is drawn for it alone, so sizes of tiers are random.

    `slowdown` is of all of a client's time: fixed seconds, training, downloads and uploads. The
    time of the day at which clients begin to be available is uniform.

    Raises:
        ValueError: with key, value and what is allowed, if the lists do not describe tiers.
    """
    _check(list(shares), list(slowdown))
    # The last sum may be rounded to less than 1.
    bounds = np.cumsum(np.array(shares, dtype=np.float64))[:-1]
    tier = np.searchsorted(bounds, uniforms(seed, "device tier", clients), side="right")
    times = np.array(slowdown, dtype=np.float64)[tier]
    same = np.ones(len(clients))
    return Devices(
        fixed=fixed * times,
        per_example=times / speed,
        down=bytes_per_second(down_mbit) / times,
        up=bytes_per_second(up_mbit) / times,
        available=available * same,
        begins=daily_beginnings(seed, clients),
        hazard=hazard * same,
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
