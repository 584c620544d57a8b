"""The contract: a compression turns a change into a message of bytes, and back.

A change is what local training changed: upload minus origin, floating-point leaves only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flfast.state.tree import Tree


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


NO_COMPRESSION = Compression("none")


def none() -> Compression:
    """Changes are sent as they are."""
    return NO_COMPRESSION
