"""The contract: how clients hide their uploads from the server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from flfast.channel.secure.round_messages import Ask
from flfast.channel.secure.round_terms import RoundTerms
from flfast.state.capabilities import NEUTRAL, Capabilities, breaking, needing

if TYPE_CHECKING:  # needs cryptography
    from flfast.channel.secure.masked_round import MaskedRound

HIDING = needing("messages", "sums", "hidden uploads", "rounds") | breaking(
    "the server gets no upload of one client", "single uploads"
)


@dataclass(frozen=True)
class Secure:
    """A protocol of secure aggregation.

    Attributes:
        name: name of the option.
        make_round: (cohort, seed of the run, path) -> one execution of the protocol. The path is
            the round, and the number of the call in the round. None: uploads are sent in clear.
        check: (clients of the largest cohort) -> nothing; raises ValueError if the settings do not
            work for it.
        max_weight: largest weight of an upload; None is the largest number of examples of a
            client.
        make_terms: (cohort, seed of the run, path) -> what server and real clients know of a
            round. None: the protocol is a simulation only.
        ask: asks real clients. None: clients are simulated.
    """

    name: str
    make_round: Callable[[Sequence[int], int, tuple[int, ...]], "MaskedRound"] | None = None
    check: Callable[[int], None] | None = None
    max_weight: float | None = None
    make_terms: Callable[[Sequence[int], int, tuple[int, ...]], RoundTerms] | None = None
    ask: Ask | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What it needs and breaks."""
        if self.make_round is None:
            return NEUTRAL
        return HIDING if self.max_weight is not None else HIDING | needing("known weights")


Hiding = Annotated[Secure, HIDING]


NO_SECURE = Secure("none")
"""Uploads are sent in the clear."""


def none() -> Secure:
    """Uploads are sent in the clear."""
    return NO_SECURE
