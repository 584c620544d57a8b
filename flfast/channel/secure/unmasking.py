"""The server's part: it removes the masks from the sum of the uploads that arrived."""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from flfast.channel.secure.keys import Agreements, KeyPair, add_mask
from flfast.channel.secure.participant import pair_mask_key, self_mask_key
from flfast.channel.secure.round_messages import PublicKeys
from flfast.channel.secure.round_terms import RoundTerms
from flfast.channel.secure.secret_sharing import combine
from flfast.channel.secure.secure import Costs, ShortageError, Sums

Answers = Mapping[int, Mapping[int, bytes]]
"""By the client that answers and the client that it answers about."""


class Unmasking:
    """Removes masks, with what clients have sent to the server and nothing else.

    Args:
        terms: the graph is of the clients who have shared their secrets.
        publics: their advertised keys.

    Attributes:
        agreements: that the server computed.
    """

    def __init__(self, terms: RoundTerms, publics: Mapping[int, PublicKeys]) -> None:
        self._terms, self._publics, self.agreements = terms, publics, Agreements()

    def sums(
        self, total: Tensor, num_wide: int, arrived: Sequence[int], answers: Answers, costs: Costs
    ) -> Sums:
        """The sums of the clients that arrived; see `MaskedRound.unmask`.

        Raises:
            ShortageError: if too few neighbours of a client answered, or what they answered is
                damaged.
        """
        words = total.numpy().view(np.uint64)
        num = len(words) - num_wide
        parts = [words[:num].astype(self._terms.dtype), words[num:].copy()]
        costs.add_masks(self.remove(parts, arrived, answers), parts)
        values, wide = (part.astype(np.uint64) for part in parts)
        return Sums(self._terms.numbers.decode(values), self._terms.wide.decode(wide))

    def remove(self, words: Sequence[np.ndarray], arrived: Sequence[int], answers: Answers) -> int:
        """Remove the masks of the clients that arrived, in place; returns how many they were.

        Args:
            words: sums of masked uploads, uint32 or uint64 arrays.
            arrived: clients in the sums.
            answers: of those clients that arrived and are still there.

        Raises:
            ShortageError: as of `sums`.
        """
        here, removed = set(arrived), 0
        for k, neighbors in self._terms.graph.items():
            there = [other for other in neighbors if other in here]
            if k in here:
                add_mask(words, self_mask_key(self._secret(k, answers)), negative=True)
                removed += 1
            elif there:
                key = KeyPair(self._secret(k, answers))
                if key.public != self._publics[k].mask:
                    raise ShortageError(f"shares of client {k}'s key are damaged")
                for other in there:
                    agreed = self.agreements(key, self._publics[other].mask)
                    # The neighbour added the mask if its id is the larger one: see `Participant`.
                    add_mask(words, pair_mask_key(agreed), negative=other > k)
                removed += len(there)
        return removed

    def _secret(self, client_id: int, answers: Answers) -> bytes:
        """The secret that the answers are shares of."""
        holders = [k for k, about in answers.items() if client_id in about]
        threshold = self._terms.least_shares
        if len(holders) < threshold:
            raise ShortageError(
                f"{len(holders)} clients with shares of client {client_id} arrived; "
                f"{threshold} are needed to remove its masks"
            )
        used, points = holders[:threshold], self._terms.points
        try:
            return combine([points[k] for k in used], [answers[k][client_id] for k in used])
        except ValueError as error:
            raise ShortageError(f"shares of client {client_id}: {error}") from None
