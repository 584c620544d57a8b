"""The server's part: it removes the masks from the sum of the uploads that arrived."""

from collections.abc import Mapping, Sequence

import numpy as np

from flfast.channel.secure.keys import Agreements, KeyPair, add_mask
from flfast.channel.secure.participant import PublicKeys, pair_mask_key, self_mask_key
from flfast.channel.secure.secret_sharing import combine
from flfast.channel.secure.secure import ShortageError

Answers = Mapping[int, Mapping[int, bytes]]
"""By the client that answers and the client that it answers about."""


class Unmasking:
    """Removes masks, with what clients have sent to the server and nothing else.

    Args:
        graph: the neighbours of each client of the cohort.
        points: where a client's shares were evaluated, by client.
        threshold: shares that give a secret.
        publics: advertised keys of the cohort.

    Attributes:
        agreements: that the server computed.
    """

    def __init__(
        self,
        graph: Mapping[int, Sequence[int]],
        points: Mapping[int, int],
        threshold: int,
        publics: Mapping[int, PublicKeys],
    ) -> None:
        self._graph, self._points, self._threshold = graph, points, threshold
        self._publics, self.agreements = publics, Agreements()

    def remove(self, words: Sequence[np.ndarray], arrived: Sequence[int], answers: Answers) -> int:
        """Remove the masks of the clients that arrived, in place; returns how many they were.

        Args:
            words: sums of masked uploads, uint32 or uint64 arrays.
            arrived: clients in the sums.
            answers: answers of the clients that arrived.

        Raises:
            ShortageError: if too few neighbours of a client arrived.
        """
        here, removed = set(arrived), 0
        for k, neighbors in self._graph.items():
            there = [other for other in neighbors if other in here]
            if k in here:
                add_mask(words, self_mask_key(self._secret(k, answers)), negative=True)
                removed += 1
            elif there:
                key = KeyPair(self._secret(k, answers))
                for other in there:
                    agreed = self.agreements(key, self._publics[other].mask)
                    # The neighbour added the mask if its id is the larger one: see `Participant`.
                    add_mask(words, pair_mask_key(agreed), negative=other > k)
                removed += len(there)
        return removed

    def _secret(self, client_id: int, answers: Answers) -> bytes:
        """The secret that the answers are shares of."""
        holders = [k for k, about in answers.items() if client_id in about]
        if len(holders) < self._threshold:
            raise ShortageError(
                f"{len(holders)} clients with shares of client {client_id} arrived; "
                f"{self._threshold} are needed to remove its masks"
            )
        used = holders[: self._threshold]
        return combine([self._points[k] for k in used], [answers[k][client_id] for k in used])
