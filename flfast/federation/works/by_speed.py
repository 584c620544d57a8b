"""Clients train as long as there is time: slow ones do a part of their work."""

import numpy as np

from flfast.state.options import Positive, PositiveUpToOne


def by_speed(
    *, training: np.ndarray, around: np.ndarray, seconds: Positive, smallest: PositiveUpToOne
) -> np.ndarray:
    """The fraction of local training with which a client ends in time, float64 [K].

        clip((seconds - around) / training, smallest, 1)

    A client that is too late even with the smallest fraction does that fraction.
    """
    left = np.maximum(seconds - around, 0.0)
    # Divided only where the result is below 1: training may take no time at all.
    work_fractions = np.divide(left, training, out=np.ones(len(training)), where=training > left)
    return np.maximum(work_fractions, smallest)
