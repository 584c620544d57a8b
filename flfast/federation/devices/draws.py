"""Random properties of devices, each a function of seed and client."""

import numpy as np
from scipy.special import ndtri

from flfast.federation.devices.device import DAY
from flfast.state.randomness import uniforms

_BYTES_PER_MBIT = 125_000.0


def lognormal_factors(seed: int, purpose: str, clients: np.ndarray, spread: float) -> np.ndarray:
    """Lognormal factors with median 1, float64 [K]; logarithms have the deviation `spread`."""
    return np.exp(spread * ndtri(uniforms(seed, purpose, clients)))


def daily_beginnings(seed: int, clients: np.ndarray) -> np.ndarray:
    """Second of the day at which each client begins to be available, uniform, float64 [K]."""
    return DAY * uniforms(seed, "device availability", clients)


def bytes_per_second(mbit: float | None) -> float:
    """Bytes per second of a bandwidth in Mbit/s; None is infinite."""
    return np.inf if mbit is None else mbit * _BYTES_PER_MBIT
