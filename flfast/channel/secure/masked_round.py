"""One round of masked aggregation, all of whose clients are simulated in this process."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from torch import Tensor

from flfast.channel.secure.keys import Agreements, derived
from flfast.channel.secure.participant import Participant
from flfast.channel.secure.round_messages import PublicKeys
from flfast.channel.secure.round_terms import RoundTerms, Sums
from flfast.channel.secure.server_round import unmasked


class MaskedRound:
    """The server's part in a round, and the clients' parts, which every rank has.

    A rank masks the uploads of clients that it trains. Masked uploads are added as int64 tensors,
    in any order and on any rank. The additions may wrap around: the moduli divide 2^64, so the sum
    modulo 2^64 has all that `unmask` needs.

    Args:
        terms: what server and clients know.
        secret: 32 bytes of which all keys are derived. The same must not come twice:
            the difference of two uploads with the same masks would be visible.

    Attributes:
        lost: why clients dropped out; empty, since simulated ones do what they are asked.
    """

    def __init__(self, terms: RoundTerms, secret: bytes) -> None:
        self.terms, self._secret = terms, secret
        self._agreements = Agreements()
        self.lost = dict[int, str]()

    @cached_property
    def _participants(self) -> dict[int, Participant]:
        terms = self.terms
        return {
            k: Participant(
                *(k, neighbors, terms.points, terms.least_shares, self._agreements),
                secret=derived(self._secret, "client", k, length=32),
            )
            for k, neighbors in terms.graph.items()
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
        """A client's masked upload, int64 [D + W], and how many elements had to be clamped.

        Args:
            client_id: one of the cohort.
            values: float64 [D]; they are clamped to the range of the settings.
            wide: float64 [W], absolute values below 2^31; they have words of 62 bits.

        Raises:
            ValueError: if the client is not in the cohort, a value is NaN or infinite, or a wide
                one is too large.
        """
        if client_id not in self.terms.graph:
            raise ValueError(f"client {client_id} is not in the cohort")
        words, clamped = self.terms.encode(client_id, values, wide)
        self._participants[client_id].add_masks(words, self._publics)
        return self.terms.packed(words), clamped

    def unmask(self, total: Tensor, arrived: Sequence[int], num_wide: int) -> Sums:
        """The sums over the clients `arrived`, of the sum of their masked uploads [D + W].

        Raises:
            ShortageError: if too few arrived.
        """
        self.terms.require(len(arrived))
        assert self._messages
        answers = {k: self._participants[k].answer(arrived) for k in arrived}
        return unmasked(self.terms, self._publics, total, num_wide, arrived, answers)
