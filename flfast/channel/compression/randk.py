"""Random elements of a change.

Konečný, McMahan, Yu, Richtárik, Suresh, Bacon: Federated Learning: Strategies for Improving
Communication Efficiency. 2016, section 3, subsampling. https://arxiv.org/abs/1610.05492
Stich, Cordonnier, Jaggi: Sparsified SGD with Memory. NeurIPS 2018, Definition 2.2.
https://arxiv.org/abs/1809.07599

The server draws the indices again from the same seed, so that only values are sent. Without error
feedback they are scaled by D / k, which makes what arrives unbiased. With error feedback they are
sent as they are: scaled ones would make the kept error grow.
"""

import numpy as np
import torch
from torch import Tensor

from flfast.channel.compression.compression import Compression, Encoding
from flfast.channel.compression.flat import flatten, from_bytes, layout_of, to_bytes, unflatten
from flfast.state.options import PositiveUpToOne, num_of_share
from flfast.state.tree import Tree


def randk(*, share: PositiveUpToOne, feedback: bool) -> Encoding:
    """Random elements; share = 1 is the change itself."""

    def encode(change: Tree, rng: np.random.Generator) -> bytes:
        _, size, dtype, _ = layout_of(change)
        vector = flatten(change, dtype)
        return to_bytes(vector[_drawn(size, int(num_of_share(share, size)), rng)])

    def decode(message: bytes, like: Tree, rng: np.random.Generator) -> Tree:
        _, size, dtype, _ = layout_of(like)
        num = int(num_of_share(share, size))
        values = from_bytes(message, dtype, num)
        if not feedback and num < size:
            largest = torch.finfo(dtype).max
            values = values.mul_(size / num).clamp_(-largest, largest)
        vector = torch.zeros(size, dtype=dtype)
        vector[_drawn(size, num, rng)] = values
        return unflatten(vector, like)

    return Compression("randk", encode, decode, feedback=feedback)


def _drawn(size: int, num: int, rng: np.random.Generator) -> Tensor:
    """Ascending indices of `num` elements of `size`, each set equally likely: int64 [num]."""
    if num == size:
        return torch.arange(size)
    return torch.from_numpy(np.sort(rng.choice(size, num, replace=False, shuffle=False)))
