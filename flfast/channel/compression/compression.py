"""The contract: a compression turns a change into a message of bytes, and back.

Uploads are changes, of which floating-point leaves are encoded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from flfast.state.capabilities import NEUTRAL, Capabilities, breaking, needing
from flfast.state.tree import Tree

CODED = needing("messages") | breaking("the server decodes single uploads", "hidden uploads")
DOWNLOADED = needing("rounds")

Downloads = Annotated[bool, DOWNLOADED]


@dataclass(frozen=True)
class Compression:
    """How changes are sent.

    Attributes:
        name: for messages.
        encode: (change, generator) -> message. Values are finite, leaves on the CPU. None: nothing
            is compressed.
        decode: (message, like, generator) -> change, with the shapes and dtypes of `like`, which
            may consist of meta tensors. The generator is in the state that `encode`'s was in, so
            both sides can draw the same numbers.
        feedback: whether the client keeps what the message lost, and adds it to its next change
            (error feedback).
        downloads: whether broadcasts are encoded as well: the weights themselves.
    """

    name: str
    encode: Callable[[Tree, np.random.Generator], bytes] | None = None
    decode: Callable[[bytes, Tree, np.random.Generator], Tree] | None = None
    feedback: bool = False
    downloads: bool = False

    @property
    def capabilities(self) -> Capabilities:
        """What it needs and breaks."""
        coded = NEUTRAL if self.encode is None else CODED
        return coded | DOWNLOADED if self.downloads else coded


Encoding = Annotated[Compression, CODED]


NO_COMPRESSION = Compression("none")


def none() -> Compression:
    """Changes are sent as they are."""
    return NO_COMPRESSION
