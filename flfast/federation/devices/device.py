"""Speed, bandwidth and availability of clients' devices, and the virtual time of their work.

Time is virtual: nothing waits. Config group `devices`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from flfast.state.options import Availability, NonNegative, Speed
from flfast.state.randomness import uniforms

DAY = 86_400.0
"""Seconds in a day, after which availability repeats."""

_EARLY = 1e-3
"""Seconds by which availability may begin early: more than a clock that is rounded can be off."""

_BYTES_PER_MBIT = 125_000.0


class Devices(NamedTuple):
    """The devices of K clients; every array is float64 [K].

    Attributes:
        fixed: seconds that every round costs, whatever there is to train.
        per_example: seconds to train on one example once.
        down: bytes per second from the server; infinity costs nothing.
        up: bytes per second to the server.
        available: share of the day in which the client can take part, in [0.001, 1].
        begins: second of the day at which it begins to be available, in [0, 86400).
        hazard: failures per second of work.
    """

    fixed: np.ndarray
    per_example: np.ndarray
    down: np.ndarray
    up: np.ndarray
    available: np.ndarray
    begins: np.ndarray
    hazard: np.ndarray

    def until(self, clock: float | np.ndarray) -> np.ndarray:
        """Seconds [K] for which each client stays available after `clock` [] or [K]; else 0."""
        gone = (clock - self.begins) % DAY
        gone = np.where(DAY - gone < _EARLY, 0.0, gone)
        left = np.maximum(self.available * DAY - gone, 0.0)
        return np.where(self.available >= 1, np.inf, left)

    def wait(self, clock: float | np.ndarray) -> np.ndarray:
        """Seconds [K] until each client is available after `clock`; 0 if it is."""
        return np.where(self.until(clock) > 0, 0.0, (self.begins - clock) % DAY)


def fastest_first(devices: Devices) -> np.ndarray:
    """Places of devices, int64 [K]: by `per_example`, then by `fixed`, then in their order.

    Bandwidths do not count, since models of several architectures may share messages of one size.
    """
    return np.lexsort((devices.fixed, devices.per_example))


DeviceModel = Callable[..., Devices]
"""(ids of clients, int64 [K]) -> their devices; it gets the run's `seed`, too, if it names it.

A function of seed and client: the same client has the same device in every round, on every rank
and after a resume. The cost is O(K), independent of the population.
"""


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """The options of devices whose speeds and bandwidths differ by drawn factors.

    Attributes:
        speed: examples per second.
        down_mbit: bandwidth from the server in Mbit/s; None is infinite.
        up_mbit: bandwidth to the server.
        fixed: see `Devices`, as `available` and `hazard`.
    """

    speed: Speed
    down_mbit: Speed | None
    up_mbit: Speed | None
    fixed: NonNegative
    available: Availability
    hazard: NonNegative

    def reliability(self, clients: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """The fields of `Devices` that say when clients are available, and whether they fail.

        The time of the day at which a client begins to be available is uniform.
        """
        same = np.ones(len(clients))
        begins = DAY * uniforms(seed, "device availability", clients)
        return {
            "available": self.available * same,
            "begins": begins,
            "hazard": self.hazard * same,
        }


def lognormal_factors(seed: int, purpose: str, clients: np.ndarray, spread: float) -> np.ndarray:
    """Lognormal factors with median 1, float64 [K]; logarithms have the deviation `spread`."""
    return np.exp(spread * ndtri(uniforms(seed, purpose, clients)))


def bytes_per_second(mbit: float | None) -> float:
    """Bytes per second of a bandwidth in Mbit/s; None is infinite."""
    return np.inf if mbit is None else mbit * _BYTES_PER_MBIT
