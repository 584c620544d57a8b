"""How clients come to take part in rounds, as far as privacy depends on it."""

import math
from typing import Literal, NamedTuple


class Participation(NamedTuple):
    """Which clients take part in a round, and how often a client can. N population.

    Attributes:
        kind: `poisson`: each client with the same probability, independently of others. `fixed`:
            K of N clients, all sets of K equally likely. `cyclic`: clients take turns in a fixed
            order. `other`: anything else, such as clients that are chosen by their data.
        population: N, clients that may be drawn.
        cohort: mean number of clients that are drawn in a round; K if it is fixed.
        expected: mean number of clients that train in a round; less than `cohort` if some drop
            out, independently of their data.
        reason: for `other`, what draws the clients, such as `sampler=by_size`.
    """

    kind: Literal["poisson", "fixed", "cyclic", "other"]
    population: int
    cohort: float
    expected: float
    reason: str = ""

    @property
    def rate(self) -> float:
        """Share of the population that is drawn in a round, in (0, 1]."""
        return min(self.cohort / self.population, 1.0)

    @property
    def rounds_per_pass(self) -> int:
        """Rounds in a row in which `cyclic` draws no client twice."""
        return max(int(self.population / self.cohort), 1)

    def most_rounds(self, rounds: int) -> int:
        """Most rounds out of the first `rounds` in which a client can take part.

        >>> Participation("cyclic", population=10, cohort=3, expected=3).most_rounds(4)
        2
        """
        if self.kind != "cyclic":
            return rounds
        return min(math.ceil(rounds * self.cohort / self.population), rounds)
