"""What the server and the clients of one round know: the graph, thresholds and encodings.

Masks are shared by everyone with everyone, or in the sparse random graph of Bell, Bonawitz,
Gascon, Lepoint, Raykova: Secure Single-Server Aggregation with (Poly)Logarithmic Overhead. CCS
2020, section 3. https://eprint.iacr.org/2020/704
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flfast.channel.secure.fixed_point import FixedPoint, fixed_point
from flfast.channel.secure.secret_sharing import SHARE_BYTES
from flfast.state.tree import Tree

WIDE_BITS, WIDE_LIMIT = 62, 2.0**31
KEYS_BYTES = 2 * 32
BOX_BYTES = 2 * SHARE_BYTES + 16
"""Encrypted shares of both secrets, with the tag."""
_ID_BYTES = 4


class ShortageError(ValueError):
    """Too few uploads arrived to remove the masks. The message names the numbers."""


class Sums(NamedTuple):
    """What the server learns of a cohort's uploads.

    Attributes:
        values: sum of the values of the clients that arrived, float64 [D].
        wide: sum of their wide values, float64 [W].
    """

    values: np.ndarray
    wide: np.ndarray


class Traffic(NamedTuple):
    """Bytes between a client and the server in one round.

    Attributes:
        up: that the client sends, its masked upload included.
        down: that it receives, without the broadcast of the round.
    """

    up: int
    down: int


@dataclass(frozen=True)
class RoundTerms:
    """A function of settings, cohort and round; it holds no secret.

    Attributes:
        graph: the neighbours of each client.
        points: where a client's shares are evaluated, by client of the cohort.
        numbers: how values are encoded.
        least: clients that must arrive.
        least_shares: shares that give a secret. A client holds one of its own, as in the paper.
    """

    graph: Mapping[int, Sequence[int]]
    points: Mapping[int, int]
    numbers: FixedPoint
    least: int
    least_shares: int

    @property
    def wide(self) -> FixedPoint:
        """How wide values are encoded."""
        return fixed_point(WIDE_BITS, WIDE_LIMIT, max(len(self.points), 1))

    @property
    def dtype(self) -> np.dtype:
        """Type of the words of values; those of wide values are uint64."""
        return np.dtype(np.uint32 if self.numbers.bits <= 32 else np.uint64)

    def encode(
        self, client_id: int, values: np.ndarray, wide: np.ndarray
    ) -> tuple[list[np.ndarray], int]:
        """Words of values [D] and wide values [W], and how many values were clamped.

        Raises:
            ValueError: if a value is NaN or infinite, or a wide one is too large.
        """
        encoded, clamped = self.numbers.encode(values)
        encoded_wide, too_large = self.wide.encode(wide)
        if too_large:
            raise ValueError(
                f"client {client_id}: {too_large} counts, sums or weights above {WIDE_LIMIT:g} "
                f"cannot be encoded"
            )
        return [encoded.astype(self.dtype), encoded_wide.view(np.uint64)], clamped

    def packed(self, words: Sequence[np.ndarray]) -> Tensor:
        """Words as one int64 tensor [D + W], without bits above the moduli."""
        masked = np.concatenate(words).view(np.int64)
        num = len(words[0])
        masked[:num] &= (1 << self.numbers.bits) - 1
        masked[num:] &= (1 << WIDE_BITS) - 1
        return torch.from_numpy(masked)

    def masked(self, vector: Tensor, num_wide: int) -> Tree:
        """A packed vector [D + W] as a client sends it; it may be a meta tensor."""
        values, wide = vector.split([len(vector) - num_wide, num_wide])
        narrow = torch.int32 if self.numbers.bits <= 32 else torch.int64
        return {"masked": {"values": values.to(narrow), "wide": wide.clone()}}

    def among(self, clients: Collection[int]) -> "RoundTerms":
        """The terms of those clients who can still share masks; of nobody if they are too few."""
        graph = {
            k: tuple(other for other in neighbors if other in clients)
            for k, neighbors in self.graph.items()
            if k in clients
        }
        able = [k for k, near in graph.items() if len(near) + 1 >= self.least_shares]
        if len(able) < self.least:
            return replace(self, graph={})
        return replace(self, graph=graph) if len(able) == len(graph) else self.among(able)

    def require(self, num: int) -> None:
        """Check that enough uploads arrived.

        Raises:
            ShortageError: if they are too few.
        """
        if num < self.least:
            raise ShortageError(
                f"{num} of {len(self.points)} uploads arrived; {self.least} are needed "
                f"to remove the masks"
            )

    def traffic(self, num_values: int, num_wide: int) -> Traffic:
        """Bytes of a client that stays to the end, serialised, for D values and W wide ones."""
        num = len(next(iter(self.graph.values())))
        # The graph is regular: what a client sends to its neighbours is as long as what it gets.
        shares = num * (_ID_BYTES + BOX_BYTES)
        masked = math.ceil(num_values * self.numbers.bits / 8) + 8 * num_wide
        answers = (num + 1) * (_ID_BYTES + SHARE_BYTES)
        arrived = math.ceil(num / 8)  # a bit for each neighbour
        return Traffic(
            up=KEYS_BYTES + shares + masked + answers,
            down=num * (_ID_BYTES + KEYS_BYTES) + shares + arrived,
        )


def round_terms(
    cohort: Sequence[int],
    rng: np.random.Generator,
    *,
    numbers: FixedPoint,
    threshold: float,
    neighbors: int | None,
) -> RoundTerms:
    """The terms of a round.

    Args:
        cohort: ids, in [0, 2^32). The sum of less than two clients is not unmasked.
        rng: orders the clients of a sparse graph.
        numbers: how values are encoded.
        threshold: share of the cohort, and of each client's neighbours, that must arrive.
        neighbors: neighbors of each client; None is the whole cohort.
    """
    places = neighbor_graph(len(cohort), neighbors, rng)
    graph = {k: tuple(cohort[i] for i in near) for k, near in zip(cohort, places, strict=True)}
    points = {k: place + 1 for place, k in enumerate(cohort)}
    degree = len(places[0]) if places else 0
    least, least_shares = _share_of(len(cohort), threshold), _share_of(degree + 1, threshold)
    return RoundTerms(graph, points, numbers, least, least_shares)


def neighbor_graph(
    num: int, degree: int | None, rng: np.random.Generator
) -> tuple[tuple[int, ...], ...]:
    """The neighbours of each of `num` clients, by place, in ascending order.

    The sparse graph is a Harary graph of randomly ordered clients: each is linked to those at most
    `degree` / 2 places away on a ring. It is symmetric, regular and connected. `degree` is rounded
    up to an even number; None is all others. `rng` orders the clients.
    """
    half = num if degree is None else math.ceil(degree / 2)
    if 2 * half >= num - 1:
        return tuple(tuple(j for j in range(num) if j != i) for i in range(num))
    order = rng.permutation(num).tolist()
    place = np.argsort(order).tolist()
    offsets = [offset for offset in range(-half, half + 1) if offset]
    return tuple(
        tuple(sorted(order[(place[i] + offset) % num] for offset in offsets)) for i in range(num)
    )


def _share_of(num: int, share: float) -> int:
    """The share of a number, rounded up, but not for a float's last bit; at least 2."""
    return max(2, math.ceil(share * num - 1e-9))
