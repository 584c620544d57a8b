"""Made hourly loads: daily and weekly seasons, with level, shape and noise of each client."""

from dataclasses import dataclass

import numpy as np

from flfast.datamodules.examples import Examples
from flfast.state.options import Count, NonNegative
from flfast.state.randomness import generator
from flfast.zoo.datamodules.sources.series_windows import WindowSource, windows_of

_DAY, _WEEK = 24, 168


@dataclass(frozen=True, kw_only=True)
class Loads(WindowSource):
    """Windows [N, 1, L] of a load for each client; see `windows_of`.

    A load is level * (1 + day + weekend + weather). `day` has two harmonics with amplitudes and
    phases of the client, and `weekend` lowers Saturdays and Sundays. `weather` is autoregressive,
    with the standard deviation `noise`.
    """

    num_clients: Count
    weeks: Count
    noise: NonNegative
    seed: int

    def load(self) -> Examples:
        """The windows of all meters."""
        loads = [self._draw(client)[:, None] for client in range(self.num_clients)]
        names = [f"meter {client}" for client in range(self.num_clients)]
        return windows_of(loads, names, ["load"], num_targets=1, cut=self)

    def _draw(self, client: int) -> np.ndarray:
        """The load of a client, [hours]."""
        hours = np.arange(self.weeks * _WEEK)
        rng = generator(self.seed, "loads", client)
        level, weekend = rng.lognormal(3, 1), rng.uniform(0, 0.4)
        day = np.zeros(len(hours))
        for harmonic in (1, 2):
            phase, height = rng.uniform(0, 4), rng.uniform(0.1, 0.4) / harmonic
            day += height * np.cos(2 * np.pi * harmonic * (hours - 17 - phase) / _DAY)
        shocks = rng.normal(0, self.noise * np.sqrt(1 - 0.8**2), len(hours))
        weather = np.zeros(len(hours))
        for hour in hours[1:]:
            weather[hour] = 0.8 * weather[hour - 1] + shocks[hour]
        off = weekend * (hours // _DAY % 7 >= 5)
        load: np.ndarray = level * (1 + day - off + weather)
        return load
