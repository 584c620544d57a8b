"""The server's part in a round with real clients. It has what they send, and nothing else."""

import os
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from flfast.channel.secure.keys import KeyPair
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
from flfast.channel.secure.round_terms import RoundTerms
from flfast.channel.secure.secure import Sums
from flfast.channel.secure.unmasking import unmasked


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
