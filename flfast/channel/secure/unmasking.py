"""The server's part: it removes the masks from the sum of the uploads that arrived."""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from flfast.channel.secure.keys import KeyPair, add_mask
from flfast.channel.secure.participant import pair_mask_key, self_mask_key
from flfast.channel.secure.round_messages import PublicKeys
from flfast.channel.secure.round_terms import RoundTerms
from flfast.channel.secure.secret_sharing import combine
from flfast.channel.secure.secure import ShortageError, Sums

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
