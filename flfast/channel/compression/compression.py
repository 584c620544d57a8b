"""The contract: a compression turns a change into a message of bytes, and back.

Uploads are changes, of which floating-point leaves are encoded.

Error feedback: Seide, Fu, Droppo, Li, Yu: 1-Bit Stochastic Gradient Descent and its Application to
Data-Parallel Distributed Training of Speech DNNs. Interspeech 2014. Karimireddy, Rebjock, Stich,
Jaggi: Error Feedback Fixes SignSGD and other Gradient Compression Schemes. ICML 2019, Algorithm 2
(EF-SGD). https://arxiv.org/abs/1901.09847

    wanted = change + kept;  sent = decode(encode(wanted));  kept = wanted - sent
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from flfast.state.capabilities import NEUTRAL, Capabilities, breaking, needing
from flfast.state.tree import Tree, sub, tree_map

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


def transmit(
    compression: Compression, change: Tree, rng: np.random.Generator
) -> tuple[bytes, Tree]:
    """Encode a change, and decode it as the receiver does.

    The leaves are floating-point and finite. `rng` is the generator of this message, and
    afterwards in the state in which `encode` left it.

    Returns:
        The message, and what the receiver makes of it.
    """
    assert compression.encode is not None
    assert compression.decode is not None
    receiver = deepcopy(rng)
    message = compression.encode(change, rng)
    return message, compression.decode(message, change, receiver)


def with_feedback(
    compression: Compression, change: Tree, kept: Tree, rng: np.random.Generator
) -> tuple[bytes, Tree, Tree]:
    """Send a change with what earlier messages lost of earlier changes.

    `kept` is what the client kept after its last message, like `change`; zeros before its first.
    All else is as of `transmit`.

    Returns:
        The message, what the receiver makes of it, and what the client keeps. The last two add up
        to `change + kept`, but for rounding.
    """
    wanted = tree_map(torch.add, change, kept)
    message, sent = transmit(compression, wanted, rng)
    return message, sent, sub(wanted, sent)
