"""Draws clients with the run's sampler."""

import inspect
from collections.abc import Callable
from functools import cached_property

import numpy as np

from flfast.datamodules.federated import FederatedDataModule
from flfast.federation.samplers.cohort import Cohort
from flfast.state.capabilities import Capabilities, capabilities_of_sampler
from flfast.state.injection import bound
from flfast.state.randomness import generator

NOBODY = np.zeros(0, dtype=np.int64)


class Sampling:
    """Draws cohorts, each a function of seed and number of the draw.

    A sampler numbers the clients that it may draw from 0. It may ask for `seed`, `round_idx`,
    `rounds`, the ids of these `candidates` and of `held_out` clients, and for `sizes`: the
    candidates' numbers of training examples, int64 [num_clients].
    """

    def __init__(
        self, sampler: Callable[..., Cohort], data: FederatedDataModule, *, seed: int, rounds: int
    ) -> None:
        self._sampler, self._data, self._seed, self._rounds = bound(sampler), data, seed, rounds
        self._names = inspect.signature(sampler).parameters

    @property
    def candidates(self) -> np.ndarray:
        """Ids of the clients that may ever be drawn, ascending, int64."""
        return self._data.candidates

    @property
    def depends_on_round(self) -> bool:
        """Whether cohorts are fixed by the number of the round, as in turns."""
        return "round_idx" in self._names

    @property
    def draws_any_number(self) -> bool:
        """Whether the sampler draws as many clients as it is asked for, by `count`."""
        return {"count", "fraction"} <= self._names.keys()

    @property
    def capabilities(self) -> Capabilities:
        """What the sampler breaks."""
        return capabilities_of_sampler(self._names)

    def cohort(
        self, number: int, *, without: np.ndarray = NOBODY, count: int | None = None
    ) -> Cohort:
        """A draw; it costs O(cohort + without), unless the sampler asks for more.

        Args:
            number: number of the draw, from 1; the round if there is one draw a round.
            without: ids of clients that are not drawn, ascending, int64.
            count: number of clients to draw, instead of the sampler's own.

        Raises:
            ValueError: if the sampler refuses the population, or a file does not fit to it.
        """
        candidates = self.candidates
        left_out = without  # their positions, which are the ids where nobody is held out
        if candidates[-1] != len(candidates) - 1:
            left_out = np.searchsorted(candidates, without)
        offers: dict[str, Callable[[], object]] = {
            "rng": lambda: generator(self._seed, "cohort", number),
            "seed": lambda: self._seed,
            "round_idx": lambda: number,
            "rounds": lambda: self._rounds,
            "candidates": lambda: np.delete(candidates, left_out),
            "held_out": lambda: self._data.held_out,
            "sizes": lambda: np.delete(self._sizes, left_out),
        }
        given = {name: make() for name, make in offers.items() if name in self._names}
        if count is not None:
            given |= {"count": count, "fraction": 1.0}
        drawn = self._sampler(len(candidates) - len(left_out), **given)
        # The rank of a candidate among those that may be drawn, turned into its position.
        skipped = left_out - np.arange(len(left_out))
        clients, dropped = (
            candidates[ranks + np.searchsorted(skipped, ranks, side="right")]
            for ranks in (drawn.clients, drawn.dropped)
        )
        return Cohort(clients, dropped)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Training examples of each candidate, int64; cached, since it costs O(population)."""
        return self._data.client_sizes[self._data.candidates]
