"""One round of masked aggregation: the clients' parts, the server's part, and their messages."""

import math
from collections.abc import Sequence
from functools import cached_property
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from flfast.channel.secure.fixed_point import FixedPoint, fixed_point
from flfast.channel.secure.keys import Agreements, derived
from flfast.channel.secure.neighbors import neighbor_graph
from flfast.channel.secure.participant import Participant, PublicKeys
from flfast.channel.secure.secret_sharing import SHARE_BYTES
from flfast.channel.secure.secure import Costs, ShortageError, Sums, Traffic
from flfast.channel.secure.unmasking import Unmasking
from flfast.state.randomness import generator

WIDE_BITS, WIDE_LIMIT = 62, 2.0**31
_ID_BYTES = 4


class MaskedRound:
    """See `SecureRound`.

    Every rank has all clients' parts, and masks the uploads of those that it trains.

    Args:
        cohort: ids, in [0, 2^32). The sum of less than two clients is not unmasked.
        seed: seed of the run.
        path: the round, and the number of the call in the round. A path must not come twice:
            the difference of two uploads with the same masks would be visible.
        numbers: how values are encoded.
        threshold: share of the cohort, and of each client's neighbours, that must arrive.
        neighbors: neighbors of each client; None is the whole cohort.

    Attributes:
        costs: costs of this rank so far.
    """

    def __init__(
        self,
        cohort: Sequence[int],
        seed: int,
        path: tuple[int, ...],
        *,
        numbers: FixedPoint,
        threshold: float,
        neighbors: int | None,
    ) -> None:
        num = len(cohort)
        self._numbers = numbers
        self._wide = fixed_point(WIDE_BITS, WIDE_LIMIT, max(num, 1))
        self._dtype = np.dtype(np.uint32 if numbers.bits <= 32 else np.uint64)
        graph = neighbor_graph(num, neighbors, generator(seed, "secure neighbors", *path))
        self._graph = {
            k: tuple(cohort[place] for place in places)
            for k, places in zip(cohort, graph, strict=True)
        }
        self._least = _share_of(num, threshold)
        # A client holds a share of its own secrets, as in the paper.
        degree = len(graph[0]) if graph else 0
        self._least_shares = _share_of(degree + 1, threshold)
        self._points = {k: place + 1 for place, k in enumerate(cohort)}
        self._secret = derived(seed.to_bytes(8, "little"), "round", *path, length=32)
        self._agreements = Agreements()
        self.costs = Costs()

    @cached_property
    def _participants(self) -> dict[int, Participant]:
        return {
            k: Participant(
                *(k, neighbors, self._points, self._least_shares, self._agreements),
                secret=derived(self._secret, "client", k, length=32),
            )
            for k, neighbors in self._graph.items()
        }

    @cached_property
    def _publics(self) -> dict[int, PublicKeys]:
        """Step AdvertiseKeys."""
        return {k: part.public for k, part in self._participants.items()}

    @cached_property
    def _messages(self) -> dict[int, dict[int, bytes]]:
        """Encrypted shares by sender and receiver, after they have been received."""
        messages = {k: part.share(self._publics) for k, part in self._participants.items()}
        for sender, by_receiver in messages.items():
            for receiver, message in by_receiver.items():
                public = self._publics[sender]
                self._participants[receiver].receive(sender, message, public)
        return messages

    def mask(self, client_id: int, values: np.ndarray, wide: np.ndarray) -> tuple[Tensor, int]:
        """See `SecureRound`."""
        if client_id not in self._graph:
            raise ValueError(f"client {client_id} is not in the cohort")
        start = perf_counter()
        encoded, clamped = self._numbers.encode(values)
        encoded_wide, too_large = self._wide.encode(wide)
        if too_large:
            raise ValueError(
                f"client {client_id}: {too_large} counts, sums or weights above {WIDE_LIMIT:g} "
                f"cannot be encoded"
            )
        words: list[np.ndarray] = [encoded.astype(self._dtype), encoded_wide.view(np.uint64)]
        self._participants[client_id].add_masks(words, self._publics)
        masked = np.concatenate(words).view(np.int64)
        masked[: len(values)] &= (1 << self._numbers.bits) - 1
        masked[len(values) :] &= (1 << WIDE_BITS) - 1
        self.costs.add_masks(len(self._graph[client_id]) + 1, words)
        self.costs.mask_s += perf_counter() - start
        return torch.from_numpy(masked), clamped

    def unmask(self, total: Tensor, arrived: Sequence[int], num_wide: int) -> Sums:
        """See `SecureRound`."""
        if len(arrived) < self._least:
            raise ShortageError(
                f"{len(arrived)} of {len(self._graph)} uploads arrived; {self._least} are needed "
                f"to remove the masks"
            )
        start = perf_counter()
        assert self._messages
        answers = {k: self._participants[k].answer(arrived) for k in arrived}
        server = Unmasking(self._graph, self._points, self._least_shares, self._publics)
        sums = total.numpy().view(np.uint64)
        num = len(sums) - num_wide
        words = [sums[:num].astype(self._dtype), sums[num:].copy()]
        self.costs.add_masks(server.remove(words, arrived, answers), words)
        self.costs.agreements = self._agreements.num + server.agreements.num
        self.costs.unmask_s += perf_counter() - start
        values, wide = (part.astype(np.uint64) for part in words)
        return Sums(self._numbers.decode(values), self._wide.decode(wide))

    def traffic(self, num_values: int, num_wide: int) -> Traffic:
        """See `SecureRound`."""
        first = next(iter(self._graph))
        num = len(self._graph[first])
        # The graph is regular: what a client sends to its neighbours is as long as what it gets.
        keys = sum(map(len, self._publics[first]))
        shares = sum(_ID_BYTES + len(message) for message in self._messages[first].values())
        masked = math.ceil(num_values * self._numbers.bits / 8) + 8 * num_wide
        answers = (num + 1) * (_ID_BYTES + SHARE_BYTES)
        arrived = math.ceil(num / 8)  # a bit for each neighbour
        return Traffic(
            up=keys + shares + masked + answers,
            down=num * (_ID_BYTES + keys) + shares + arrived,
        )


def _share_of(num: int, share: float) -> int:
    """The share of a number, rounded up, but not for a float's last bit; at least 2."""
    return max(2, math.ceil(share * num - 1e-9))
