"""The clients that are free to begin; only some of them are available."""

from collections.abc import Iterable

import numpy as np

from flfast.federation.samplers.cohort import Cohort
from flfast.federation.sampling import NOBODY, Sampling
from flfast.federation.timing import Timing

_FAST_DRAWS = 4
"""Draws among all clients that are free, before those that are available are listed."""


class Pool:
    """Draws clients that are free; a draw costs O(busy clients), not O(population).

    Attributes:
        num_draws: number of draws by the sampler so far.
        wakes: virtual time at which somebody becomes available, if the last draw found too few.
    """

    def __init__(self, sampling: Sampling, timing: Timing) -> None:
        self._sampling, self._timing = sampling, timing
        self._busy = NOBODY
        self.num_draws, self.wakes = 0, np.inf

    def draw(self, count: int, clock: float) -> Cohort:
        """Clients that are free and available: `count`, or as many as there are; now busy."""
        without, missing = self._busy, count
        drawn: list[Cohort] = []
        for _ in range(_FAST_DRAWS):
            found = self._draw_some(missing, without)
            drawn.append(Cohort(*(part[self._is_here(part, clock)] for part in found[:2])))
            missing -= sum(map(len, drawn[-1]))
            if not missing:
                break
            without = _with(without, *found[:2])
        self.wakes = np.inf
        if missing:
            # Few are available: look at everybody, which costs O(population).
            candidates = self._sampling.candidates
            taken = _with(self._busy, *(part for cohort in drawn for part in cohort[:2]))
            waits = self._timing.devices(candidates).wait(clock)
            away = (waits > 0) & ~np.isin(candidates, taken)
            drawn.append(self._draw_some(missing, _with(taken, candidates[away])))
            if away.any():
                self.wakes = clock + float(waits[away].min())
        cohort = Cohort(*(np.concatenate(part) for part in zip(*drawn, strict=True)))
        self.occupy(np.concatenate(cohort[:2]))
        return cohort

    def occupy(self, clients: Iterable[int]) -> None:
        """These clients are busy from now on."""
        self._busy = _with(self._busy, np.array(clients, dtype=np.int64))

    def release(self, clients: Iterable[int]) -> None:
        """These clients are free again."""
        places = np.searchsorted(self._busy, np.array(clients, dtype=np.int64))
        self._busy = np.delete(self._busy, places)

    def _draw_some(self, count: int, without: np.ndarray) -> Cohort:
        """Up to `count` clients, whether they are available or not."""
        num = min(count, len(self._sampling.candidates) - len(without))
        if not num:
            return Cohort(NOBODY, NOBODY)
        self.num_draws += 1
        return self._sampling.cohort(self.num_draws, without=without, count=num)

    def _is_here(self, clients: np.ndarray, clock: float) -> np.ndarray:
        if not len(clients):
            return np.zeros(0, dtype=bool)
        return self._timing.devices(clients).until(clock) > 0


def _with(ascending: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """The ids with others put in, ascending; they are all distinct."""
    added = np.sort(np.concatenate(others))
    return np.insert(ascending, np.searchsorted(ascending, added), added)
