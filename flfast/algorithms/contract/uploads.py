"""How the server combines uploads, and what it sees of them."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from flfast.state.tree import Tree


class Part(NamedTuple):
    """How the server combines a part of the uploads, one of their top-level keys.

    Attributes:
        rule: `mean` weighted by the clients' weights, `sum` over clients, or `rows`: no
            combination.
        over: another part by which the result is divided, element by element from the first axis
            on; 0 where that is 0. Class sums over class counts are class means.
        learned: whether attacks, clipping and robust rules act on it. Otherwise it is counts, in
            [0, 2^31), and robust rules take their median.
        stale: what happens to it if it is stale: `discount` lets it count less. `keep` does not,
            where the server keeps the sum of what clients keep: both would no longer agree.
            `refuse`: it is no change of anything, so asynchronous training is an error. So it is
            for sums and quotients.
    """

    rule: Literal["mean", "sum", "rows"] = "mean"
    over: str | None = None
    learned: bool = True
    stale: Literal["discount", "keep", "refuse"] = "discount"

    @property
    def is_mean(self) -> bool:
        """Whether it is averaged, and divided by nothing."""
        return self.rule == "mean" and self.over is None


class Uploads(NamedTuple):
    """The uploads of a cohort, as the server step gets them. K clients.

    Attributes:
        mean: combined parts: weighted means or the results of another aggregation rule, and sums.
        num_clients: K, clients whose uploads were aggregated, >= 1; dropped and diverged clients
            are excluded. With noise of the server, it is the mean over rounds, >= 0.
        population: clients in the federation.
        rows: parts with the rule `rows`, each leaf [K, ...].
        sent: what `Algorithm.send` gave the clients of the rows, each leaf [K, ...].
        clients: ids of the rows, int64 [K].
        weights: weights of the rows in means, float64 [K].
        round: number of the round, from 1.
    """

    mean: Tree
    num_clients: float
    population: int
    rows: Tree = {}  # noqa: RUF012 - never changed
    clients: Tensor = torch.zeros(0, dtype=torch.int64)
    weights: Tensor = torch.zeros(0, dtype=torch.float64)
    round: int = 0
    sent: Tree = {}  # noqa: RUF012 - never changed
