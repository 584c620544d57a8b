"""One bit per element, and one magnitude per leaf.

Bernstein, Wang, Azizzadenesheli, Anandkumar: signSGD: Compressed Optimisation for Non-Convex
Problems. ICML 2018. https://arxiv.org/abs/1802.04434
Karimireddy, Rebjock, Stich, Jaggi: Error Feedback Fixes SignSGD and other Gradient Compression
Schemes. ICML 2019, Algorithm 1 (EF-signSGD). https://arxiv.org/abs/1901.09847

    sent = |p|_1 / d * sign(p),  for each leaf p of d elements

The sign of zero is sent as plus. So is that of values which may be zero but for rounding: 1e-4 of
the leaf's mean magnitude or less (`state/near_ties.py`). Algorithm 1 has one magnitude for all;
the paper's experiments have one per layer, as here.
"""

import numpy as np
import torch

from flfast.channel.compression.compression import Compression, Encoding
from flfast.channel.compression.flat import flatten, from_bytes, layout_of, to_bytes, unflatten
from flfast.state.near_ties import EQUAL
from flfast.state.tree import Tree


def sign(*, feedback: bool) -> Encoding:
    """Signs and the mean magnitude of each leaf.

    Signs alone, without `feedback`, are biased, and may not converge.
    """

    def encode(change: Tree, rng: np.random.Generator) -> bytes:
        sizes, _, dtype, work = layout_of(change)
        vector = flatten(change, work)
        norms = []
        for leaf in vector.split(sizes):
            if leaf.numel():
                # Summed in float64, in which no sum of float32 overflows.
                norms.append(float(leaf.abs().sum(dtype=torch.float64)) / leaf.numel())
                leaf.add_(EQUAL * norms[-1])
        largest = torch.finfo(dtype).max
        means = torch.tensor(norms, dtype=torch.float64).clamp_(max=largest).to(dtype)
        return to_bytes(means) + np.packbits(vector.numpy() >= 0).tobytes()

    def decode(message: bytes, like: Tree, rng: np.random.Generator) -> Tree:
        sizes, num, dtype, work = layout_of(like)
        filled = [size for size in sizes if size]
        means = from_bytes(message, dtype, len(filled)).to(work)
        raw = np.frombuffer(message, np.uint8, offset=len(filled) * dtype.itemsize)
        positive = torch.from_numpy(np.unpackbits(raw, count=num))
        vector = positive.to(work).mul_(2).sub_(1)
        for leaf, mean in zip(vector.split(filled) if filled else (), means, strict=True):
            leaf.mul_(mean)
        return unflatten(vector, like)

    return Compression("sign", encode, decode, feedback=feedback)
