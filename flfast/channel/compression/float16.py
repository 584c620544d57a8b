"""Half precision: 16 bits per element.

A value is rounded to the nearest number of IEEE 754 binary16. The relative error is at most 2^-11
for magnitudes from 6.1e-5 to 65504. Smaller ones have an absolute error of at most 2^-25, larger
ones are sent as 65504. Leaves that have 16 bits already are sent as they are.
"""

import numpy as np
import torch

from flfast.channel.compression.compression import Compression, Downloads, Encoding
from flfast.channel.compression.flat import flatten, from_bytes, layout_of, to_bytes, unflatten
from flfast.state.tree import Tree

_LARGEST = torch.finfo(torch.float16).max


def float16(*, downloads: Downloads) -> Encoding:
    """Half of float32's bytes, for almost no loss."""

    def encode(change: Tree, rng: np.random.Generator) -> bytes:
        wire = layout_of(change).wire
        vector, dtype = flatten(change, wire), _sent_dtype(wire)
        if dtype != wire:
            vector = vector.clamp_(-_LARGEST, _LARGEST).to(dtype)
        return to_bytes(vector)

    def decode(message: bytes, like: Tree, rng: np.random.Generator) -> Tree:
        layout = layout_of(like)
        vector = from_bytes(message, _sent_dtype(layout.wire), layout.size)
        return unflatten(vector.to(layout.wire), like)

    return Compression("float16", encode, decode, downloads=downloads)


def _sent_dtype(wire: torch.dtype) -> torch.dtype:
    return wire if wire.itemsize == 2 else torch.float16
