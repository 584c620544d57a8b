"""What server and real clients tell each other in a round, as plain values: bytes in hexadecimal.

A request and its answer for each step: AdvertiseKeys, ShareKeys, MaskedInputCollection, Unmasking.
The answer to the third is a masked upload, of tensors.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Protocol, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer

from flfast.channel.secure.round_terms import BOX_BYTES
from flfast.channel.secure.secret_sharing import PRIME, SECRET_BYTES, SHARE_BYTES


def _from_hex(value: object) -> object:
    return bytes.fromhex(value) if isinstance(value, str) else value


_Hex = Annotated[bytes, BeforeValidator(_from_hex), PlainSerializer(bytes.hex)]
Key = Annotated[_Hex, Field(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
_Box = Annotated[_Hex, Field(min_length=BOX_BYTES, max_length=BOX_BYTES)]
_Share = Annotated[_Hex, Field(min_length=SHARE_BYTES, max_length=SHARE_BYTES)]
_Id = Annotated[int, Field(ge=0, lt=2**32)]
_Number = Annotated[int, Field(strict=True, ge=0, le=2**53)]


class PublicKeys(BaseModel, frozen=True):
    """What a client advertises.

    Attributes:
        mask: key of the pairwise masks.
        share: key of the encryption of shares. It is another one, since that of the masks becomes
            known to the server if the client drops out.
    """

    mask: Key
    share: Key


class Request(BaseModel):
    """A request in the round and call of `path`."""

    path: tuple[_Number, _Number]


class Advertise(Request):
    """Asks for public keys; `cohort` are the clients of the round."""

    cohort: list[_Id] = Field(max_length=PRIME - 1)


class Share(Request):
    """Asks for encrypted shares; `publics` are keys of neighbours, and those of the client."""

    publics: dict[_Id, PublicKeys]


class Boxes(BaseModel):
    """Encrypted shares by neighbour: by receiver in an answer, by sender in a request."""

    boxes: dict[_Id, _Box]


class Mask(Request, Boxes):
    """Asks for a masked upload, with masks of the neighbours who sent the boxes."""

    max_weight: float = Field(strict=True, gt=0, le=1e30)


class Unmask(Request):
    """Asks for shares; the masked uploads of the clients `arrived` are in the sum."""

    arrived: list[_Id]


class Shares(BaseModel):
    """A share of each neighbour and of the client itself; see `Participant.answer`."""

    shares: dict[_Id, _Share]


Answer = TypeVar("Answer", bound=BaseModel)


class Ask(Protocol):
    """Sends requests to real clients."""

    def __call__(
        self, kind: str, requests: Mapping[int, Request], answer: type[Answer]
    ) -> Iterator[tuple[int, Answer | str]]:
        """(client, its answer or why there is none) of all clients, in any order."""
