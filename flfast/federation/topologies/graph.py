"""A graph of clients without a server: each mixes its model with those of its neighbours.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: Can Decentralized Algorithms Outperform Centralized
Algorithms? NeurIPS 2017, Algorithm 1 (D-PSGD). https://arxiv.org/abs/1705.09056
Sun, Li, Wang: Decentralized Federated Averaging. IEEE TPAMI 2023, Algorithm 1 (DFedAvg, DFedAvgM).
https://arxiv.org/abs/2104.11375

    w_k := sum_j W_kj w_j + local change of w_k      (`mixes: before`, D-PSGD with one local step)
    w_k := sum_j W_kj (w_j + local change of w_j)    (`mixes: after`, DFedAvg)
    W_kj = 1 / (1 + max(d_k, d_j)) for neighbours, W_kk = 1 - sum_j W_kj     (Metropolis weights)

d are numbers of neighbours. Clients that do not take part in a round keep their model, and are
nobody's neighbour in it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from flfast.federation.topologies.topology import NODES, Topology
from flfast.state.options import PositiveUpToOne
from flfast.state.randomness import generator

Kind = Literal["full", "ring", "torus", "exponential", "random"]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Clients that are neighbours in a graph; see the YAML for the options."""

    kind: Kind | str
    probability: PositiveUpToOne | None
    changes: bool
    mixes: Literal["before", "after"]

    def __call__(
        self, *, participants: np.ndarray, num_clients: int, seed: int
    ) -> Annotated[Topology, NODES]:
        """The topology of N clients, of whom those that are not held out participate.

        Raises:
            ValueError: if there is no such graph of the clients.
        """
        self._check(num_clients - len(participants))

        def links(number: int, present: np.ndarray) -> np.ndarray:
            drawn = generator(seed, "graph", number if self.changes else 0)
            found = neighbours(self.kind, num_clients, drawn, self.probability or 0.0)
            return found & present[:, None] & present

        def mixing(number: int, present: np.ndarray) -> np.ndarray:
            return metropolis(links(number, present))

        def sends(number: int, present: np.ndarray) -> np.ndarray:
            return links(number, present).sum(1)

        links(1, np.ones(num_clients, dtype=bool))
        clients = np.arange(num_clients)
        shares = np.full(num_clients, 1 / num_clients)
        return Topology("graph", clients, shares, mixing, sends, None, self.mixes == "before")

    def _check(self, num_held_out: int) -> None:
        kind, probability = self.kind, self.probability
        if self.changes and kind != "random":
            raise ValueError(
                f"topology.changes=true: is for kind=random; allowed with {kind}: false"
            )
        if (probability is None) == (kind == "random"):
            shown = "null" if probability is None else probability
            raise ValueError(
                f"topology.probability={shown}: is for kind=random, which needs it; allowed with "
                f"{kind}: {'a number in (0, 1]' if kind == 'random' else 'null'}"
            )
        if num_held_out > 0:
            raise ValueError(
                f"topology=graph with {num_held_out} held-out clients, to whom nobody sends a "
                f"model; allowed: sampler.holdout_clients=0"
            )


def metropolis(links: np.ndarray) -> np.ndarray:
    """Metropolis weights [N, N] of a symmetric graph, bool [N, N]: rows and columns add up to 1.

    >>> metropolis(np.array([[False, True], [True, False]]))
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    degrees = links.sum(1)
    weights = links / (1 + np.maximum(degrees[:, None], degrees))
    np.fill_diagonal(weights, 1 - weights.sum(1))
    return weights


def neighbours(
    kind: str, num: int, rng: np.random.Generator, probability: float = 0.0
) -> np.ndarray:
    """Who is whose neighbour, symmetric bool [N, N] without loops.

    A torus is a grid that is as square as N allows; of a prime N it is a ring.

    Raises:
        ValueError: if there is no such graph of N nodes.
    """
    found = np.zeros((num, num), dtype=bool)
    here = np.arange(num)
    if kind == "full":
        found[:] = True
    elif kind == "ring":
        found[here, (here + 1) % num] = True
    elif kind == "exponential":
        for hop in 2 ** np.arange(max(1, (num - 1).bit_length())):
            found[here, (here + hop) % num] = True
    elif kind == "torus":
        width = next(w for w in range(int(num**0.5), 0, -1) if num % w == 0)
        grid = here.reshape(-1, width)
        for axis in (0, 1):
            found[grid, np.roll(grid, 1, axis)] = True
    elif kind == "random":
        found = np.triu(rng.random((num, num)) < probability, 1)
    else:
        found = _from_file(kind, num)
    found |= found.T
    np.fill_diagonal(found, val=False)
    return found


def _from_file(path: str, num: int) -> np.ndarray:
    if not Path(path).is_file():
        raise ValueError(
            f"topology.kind={path}: is no file; allowed: full, ring, torus, exponential, random, "
            f"or a file with two neighbours in each line"
        )
    found = np.zeros((num, num), dtype=bool)
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        words = line.replace(",", " ").split()
        if len(words) != 2 or not all(word.isdigit() and int(word) < num for word in words):
            raise ValueError(
                f"topology.kind={path}: {line!r}; allowed: two numbers from 0 to {num - 1} a line"
            )
        found[int(words[0]), int(words[1])] = True
    return found
