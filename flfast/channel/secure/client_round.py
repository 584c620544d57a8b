"""A real client's part in a round. What it needs from one request to the next is in a file."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from flfast.channel.secure.keys import Agreements
from flfast.channel.secure.participant import Participant
from flfast.channel.secure.round_messages import (
    Advertise,
    Boxes,
    Key,
    Mask,
    PublicKeys,
    Request,
    Share,
    Shares,
    Unmask,
)
from flfast.channel.secure.round_terms import RoundTerms
from flfast.state.regular_file import read_file
from flfast.state.tree import Tree


class _Kept(Advertise, Boxes):
    """What a client keeps: the secret of its keys, and what it was told."""

    secret: Key
    publics: dict[int, PublicKeys]


class ClientRound:
    """A client that answers each request of a round once. It never has two rounds at a time.

    All methods raise a ValueError with the reason if the request is not the next one, or if what
    it holds is damaged.

    Args:
        client_id: in [0, 2^32).
        make_terms: (cohort, path) -> the terms of a round.
        file: for the secrets of the round; the client's user alone can read it.
    """

    def __init__(
        self,
        client_id: int,
        make_terms: Callable[[Sequence[int], tuple[int, int]], RoundTerms],
        file: Path,
    ) -> None:
        self._id, self._terms, self._file = client_id, make_terms, file

    def advertise(self, asked: Advertise) -> PublicKeys:
        """Step AdvertiseKeys: draw keys from the operating system."""
        if self._id not in asked.cohort or len({*asked.cohort}) < len(asked.cohort):
            raise ValueError("the cohort is not one with this client")
        kept = _Kept(**asked.model_dump(), secret=os.urandom(32), publics={}, boxes={})
        self._keep(kept)
        return self._participant(kept).public

    def share(self, asked: Share) -> Boxes:
        """Step ShareKeys."""
        kept = self._kept(asked)
        own, near = self._participant(kept).public, self._terms(kept.cohort, kept.path).graph
        if kept.publics or asked.publics.get(self._id) != own:
            raise ValueError("its public keys were changed on the way, or it was asked twice")
        if not asked.publics.keys() <= {self._id, *near[self._id]}:
            raise ValueError("keys of clients that are no neighbours")
        kept.publics = {k: keys for k, keys in asked.publics.items() if k != self._id}
        self._keep(kept)
        return Boxes(boxes=self._participant(kept).share(kept.publics))

    def receive(self, asked: Mask) -> None:
        """The first half of step MaskedInputCollection: keep the neighbours' shares."""
        kept = self._kept(asked)
        if kept.boxes or not asked.boxes or not asked.boxes.keys() <= kept.publics.keys():
            raise ValueError("no shares of neighbours, or it was asked twice")
        kept.publics, kept.boxes = {k: kept.publics[k] for k in asked.boxes}, asked.boxes
        self._opened(kept)
        self._keep(kept)

    def mask(self, asked: Mask, values: np.ndarray, wide: np.ndarray) -> tuple[Tree, int]:
        """The second half: the masked upload, and how many values were clamped."""
        kept = self._kept(asked)
        terms = self._terms(kept.cohort, kept.path)
        words, clamped = terms.encode(self._id, values, wide)
        self._participant(kept).add_masks(words, kept.publics)
        return terms.masked(terms.packed(words), len(wide)), clamped

    def answer(self, asked: Unmask) -> Shares:
        """Step Unmasking. The secrets are gone before the server has an answer."""
        kept = self._kept(asked)
        self.forget()
        arrived = {*asked.arrived}
        least = self._terms(kept.cohort, kept.path).least
        if self._id not in arrived or len(arrived) < least:
            raise ValueError("too few uploads arrived to remove the masks, or not its own")
        return Shares(shares=self._opened(kept).answer(arrived))

    def forget(self) -> None:
        """Delete the secrets of the last round, if there are any."""
        self._file.unlink(missing_ok=True)

    def _participant(self, kept: _Kept) -> Participant:
        """The client, with keys of the kept secret and the neighbours who are still there."""
        terms, near = self._terms(kept.cohort, kept.path), list(kept.publics)
        if kept.publics and len(near) + 1 < terms.least_shares:
            raise ValueError(f"{len(near)} neighbours are too few to mask an upload")
        shares = terms.points, terms.least_shares, Agreements()
        return Participant(self._id, near, *shares, secret=kept.secret)

    def _opened(self, kept: _Kept) -> Participant:
        """The client with its own shares and those of its neighbours."""
        participant = self._participant(kept)
        participant.share(kept.publics)  # keeps its own
        for sender, box in kept.boxes.items():
            participant.receive(sender, box, kept.publics[sender])
        return participant

    def _keep(self, kept: _Kept) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self.forget()
        number = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(kept.model_dump_json())

    def _kept(self, asked: Request) -> _Kept:
        if not self._file.exists():
            raise ValueError("no keys of this round")
        kept = _Kept.model_validate_json(read_file(self._file))
        if kept.path != asked.path:
            raise ValueError(f"keys of round and call {kept.path}, not of {asked.path}")
        return kept
