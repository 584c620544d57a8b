"""Stochastic rounding to a few uniform levels.

Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD: Communication-Efficient SGD via Gradient
Quantization and Encoding. NeurIPS 2017, section 3.1, with the variants of section 4: buckets, and
the largest magnitude in place of the Euclidean norm. https://arxiv.org/abs/1610.02132
For uploads of federated clients: Reisizadeh, Mokhtari, Hassani, Jadbabaie, Pedarsani: FedPAQ.
AISTATS 2020. https://arxiv.org/abs/1909.13014

    sent_i = scale * l / s,  with l in {-s, ..., s},  E[sent_i] = x_i,  s = 2^(bits - 1) - 1

`scale` is the largest magnitude of the bucket. One bit has the levels -scale and scale. The
expectation is exact to 2^-16 of the distance between levels, because a random number has 16 bits.
Levels have a fixed number of bits; the paper's Elias code is for the Euclidean norm, where most
levels are zero.
"""

import numpy as np
import torch

from flfast.channel.compression.bits import pack, packed_size, unpack
from flfast.channel.compression.compression import Compression, Downloads, Encoding
from flfast.channel.compression.flat import flatten, from_bytes, layout_of, to_bytes, unflatten
from flfast.channel.compression.rounding import Buckets
from flfast.state.options import Bits, Count
from flfast.state.tree import Tree

# Changes below this are sent as zero: the inverse of a smaller scale would overflow.
_SMALLEST = 1e-35
# Keeps rounding errors from lifting the largest value over the highest level.
_BELOW_ONE = 1 - 2.0**-22


def quantize(*, bits: Bits, bucket: Count | None, downloads: Downloads) -> Encoding:
    """Levels of `bits` bits each, and a scale per bucket."""
    # Levels are the integers from 0 to 2 * half, of which `half` stands for zero.
    half = 2.0 ** (bits - 1) - 1 if bits > 1 else 0.5

    def encode(change: Tree, rng: np.random.Generator) -> bytes:
        sizes, _, _, dtype = layout_of(change)
        vector = flatten(change, dtype)
        buckets = Buckets(sizes, bucket)
        scales = buckets.largest(vector)
        scales.clamp_(max=torch.finfo(scales.dtype).max * _BELOW_ONE)
        factors = torch.where(scales < _SMALLEST, 0, half * _BELOW_ONE / scales)
        scales[scales < _SMALLEST] = 0
        seed = int(rng.integers(2**63))
        levels = buckets.rounded(vector, factors, half, seed)
        return b"".join([to_bytes(scales), pack(levels, bits).data])

    def decode(message: bytes, like: Tree, rng: np.random.Generator) -> Tree:
        sizes, num, _, dtype = layout_of(like)
        buckets = Buckets(sizes, bucket)
        scales = from_bytes(message, dtype, buckets.num)
        packed = np.frombuffer(message, np.uint8, offset=scales.nbytes)
        levels = unpack(packed[: packed_size(num, bits)], num, bits)
        if bits > 1:
            scales /= half
        step = 2.0 if bits == 1 else 1.0
        return unflatten(buckets.values(levels, scales, half, step), like)

    return Compression("quantize", encode, decode, downloads=downloads)
