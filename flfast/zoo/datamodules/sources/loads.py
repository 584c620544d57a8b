"""Made hourly loads: daily and weekly seasons, with level, shape and noise of each client."""

import numpy as np

from flfast.datamodules.examples import Examples
from flfast.state.options import BelowOne, Count, NonNegative
from flfast.state.randomness import generator
from flfast.zoo.datamodules.sources.series_windows import Objective, Windows, windows_of

_DAY, _WEEK = 24, 168


def loads(  # noqa: PLR0913 - one parameter an option
    *,
    num_clients: Count,
    weeks: Count,
    noise: NonNegative,
    window: Count,
    horizon: Count,
    stride: Count,
    season: Count,
    test_fraction: BelowOne,
    loss: Objective,
    seed: int,
) -> Examples:
    """Windows [N, 1, L] of a load for each client; see `windows_of`.

    A load is level * (1 + day + weekend + weather). `day` has two harmonics with amplitudes and
    phases of the client, and `weekend` lowers Saturdays and Sundays. `weather` is autoregressive,
    with the standard deviation `noise`.
    """
    hours = np.arange(weeks * _WEEK)
    found = []
    for client in range(num_clients):
        rng = generator(seed, "loads", client)
        level, weekend = rng.lognormal(3, 1), rng.uniform(0, 0.4)
        day = np.zeros(len(hours))
        for harmonic in (1, 2):
            phase, height = rng.uniform(0, 4), rng.uniform(0.1, 0.4) / harmonic
            day += height * np.cos(2 * np.pi * harmonic * (hours - 17 - phase) / _DAY)
        shocks = rng.normal(0, noise * np.sqrt(1 - 0.8**2), len(hours))
        weather = np.zeros(len(hours))
        for hour in hours[1:]:
            weather[hour] = 0.8 * weather[hour - 1] + shocks[hour]
        off = weekend * (hours // _DAY % 7 >= 5)
        found.append(level * (1 + day - off + weather)[:, None])
    cut = Windows(window, horizon, stride, season, test_fraction, loss)
    names = [f"meter {client}" for client in range(num_clients)]
    return windows_of(found, names, ["load"], num_targets=1, cut=cut)
