"""The server's part in a round: it has what clients send, and nothing else."""

import os
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from torch import Tensor

from flfast.channel.secure.keys import KeyPair, add_mask
from flfast.channel.secure.participant import pair_mask_key, self_mask_key
from flfast.channel.secure.round_messages import (
    Advertise,
    Answer,
    Ask,
    Boxes,
    Mask,
    PublicKeys,
    Request,
    Share,
    Shares,
    Unmask,
)
from flfast.channel.secure.round_terms import RoundTerms, ShortageError, Sums
from flfast.channel.secure.secret_sharing import combine


class ServerRound:
    """See `MaskedRound`. Clients may drop out at each of the four steps.

    The terms are those of the whole cohort, and the path is the round, and the number of the call
    in the round.

    Attributes:
        lost: why clients dropped out, as far as it is known.
    """

    def __init__(self, terms: RoundTerms, path: tuple[int, int], ask: Ask) -> None:
        self.terms, self._terms, self._path, self._ask = terms, terms, path, ask
        self._publics: dict[int, PublicKeys] = {}
        self.lost = dict[int, str]()

    def agree(self, max_weight: float) -> dict[int, Mask | str]:
        """Steps AdvertiseKeys and ShareKeys: how a client masks, or why it cannot."""
        path, cohort = self._path, list(self.terms.points)
        asked: Mapping[int, Request] = {k: Advertise(path=path, cohort=cohort) for k in cohort}
        self._publics = keys = self._asked("advertise", asked, PublicKeys)
        own = KeyPair(os.urandom(32))
        for k, found in keys.items():
            try:
                own.exchange(found.mask)
                own.exchange(found.share)
            except ValueError:  # noqa: PERF203 - a key that agrees on nothing secret with anybody
                self.lost[k] = "its public keys are damaged"
        self._narrow(keys)
        asked = {
            k: Share(path=path, publics={j: keys[j] for j in (k, *near)})
            for k, near in self._terms.graph.items()
        }
        boxes = self._asked("share", asked, Boxes)
        for k, one in boxes.items():
            if one.boxes.keys() != {*self._terms.graph[k]}:
                self.lost[k] = "shares for other clients than its neighbours"
        self._narrow(boxes)
        masks = {
            k: Mask(path=path, boxes={j: boxes[j].boxes[k] for j in near}, max_weight=max_weight)
            for k, near in self._terms.graph.items()
        }
        return {**masks, **self.lost}

    def _asked(
        self, kind: str, asked: Mapping[int, Request], answer: type[Answer]
    ) -> dict[int, Answer]:
        """Answers by client, in the order of the cohort."""
        found: dict[int, Answer] = {}
        for k, one in self._ask(kind, asked, answer):
            if isinstance(one, str):
                self.lost[k] = one
            else:
                found[k] = one
        return {k: found[k] for k in asked if k in found}

    def _narrow(self, answered: Collection[int]) -> None:
        """Go on with those who answered."""
        before = self._terms.graph
        here = [k for k in answered if k not in self.lost]
        self._terms = self._terms.among(here)
        for k in before.keys() - self._terms.graph.keys() - self.lost.keys():
            self.lost[k] = (
                f"{len(here)} of {len(self.terms.points)} clients exchanged keys, too few to "
                f"mask its upload"
            )

    def unmask(self, total: Tensor, arrived: Sequence[int], num_wide: int) -> Sums:
        """See `MaskedRound`; step Unmasking."""
        self.terms.require(len(arrived))
        asked = {k: Unmask(path=self._path, arrived=list(arrived)) for k in arrived}
        answers = {k: one.shares for k, one in self._asked("unmask", asked, Shares).items()}
        return unmasked(self._terms, self._publics, total, num_wide, arrived, answers)


Answers = Mapping[int, Mapping[int, bytes]]
"""By the client that answers and the client that it answers about."""


def unmasked(
    terms: RoundTerms,
    publics: Mapping[int, PublicKeys],
    total: Tensor,
    num_wide: int,
    arrived: Sequence[int],
    answers: Answers,
) -> Sums:
    """The sums of the clients that arrived, with what clients have sent and nothing else.

    Args:
        terms: the graph is of the clients who have shared their secrets.
        publics: their advertised keys.
        total: sum of their masked uploads, int64 [D + W].
        num_wide: W.
        arrived: clients in the sum.
        answers: of those clients that arrived and are still there.

    Raises:
        ShortageError: if too few neighbours of a client answered, or an answer is damaged.
    """
    words, here = total.numpy().view(np.uint64), set(arrived)
    num = len(words) - num_wide
    parts = [words[:num].astype(terms.dtype), words[num:].copy()]
    for k, neighbors in terms.graph.items():
        there = [other for other in neighbors if other in here]
        if k in here:
            add_mask(parts, self_mask_key(_secret(terms, k, answers)), negative=True)
        elif there:
            key = KeyPair(_secret(terms, k, answers))
            if key.public != publics[k].mask:
                raise ShortageError(f"shares of client {k}'s key are damaged")
            for other in there:
                agreed = key.exchange(publics[other].mask)
                # The neighbour added the mask if its id is the larger one: see `Participant`.
                add_mask(parts, pair_mask_key(agreed), negative=other > k)
    values, wide = (part.astype(np.uint64) for part in parts)
    return Sums(terms.numbers.decode(values), terms.wide.decode(wide))


def _secret(terms: RoundTerms, client_id: int, answers: Answers) -> bytes:
    """The secret that the answers are shares of."""
    holders = [k for k, about in answers.items() if client_id in about]
    threshold = terms.least_shares
    if len(holders) < threshold:
        raise ShortageError(
            f"{len(holders)} clients with shares of client {client_id} arrived; "
            f"{threshold} are needed to remove its masks"
        )
    used, points = holders[:threshold], terms.points
    try:
        return combine([points[k] for k in used], [answers[k][client_id] for k in used])
    except ValueError as error:
        raise ShortageError(f"shares of client {client_id}: {error}") from None
