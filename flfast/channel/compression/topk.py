"""The largest elements of a change.

Aji, Heafield: Sparse Communication for Distributed Gradient Descent. EMNLP 2017.
https://arxiv.org/abs/1704.05021
Stich, Cordonnier, Jaggi: Sparsified SGD with Memory. NeurIPS 2018, Definition 2.2 and Algorithm 1.
https://arxiv.org/abs/1809.07599

The k elements of largest magnitude over all leaves are sent as they are, with their indices
(`index_sets.py`). The others are zero. Magnitudes that differ by less than 1e-4 of themselves are
equal, and the first of them are sent (`state/near_ties.py`).
"""

import numpy as np
import torch

from flfast.channel.compression.compression import Compression, Encoding
from flfast.channel.compression.flat import flatten, from_bytes, layout_of, to_bytes, unflatten
from flfast.channel.compression.index_sets import decode_indices, encode_indices
from flfast.state.near_ties import largest
from flfast.state.options import PositiveUpToOne, num_of_share
from flfast.state.tree import Tree


def topk(*, share: PositiveUpToOne, feedback: bool) -> Encoding:
    """The elements of largest magnitude; share = 1 is the change itself.

    The largest elements alone, without `feedback`, are biased, and may not converge.
    """

    def encode(change: Tree, rng: np.random.Generator) -> bytes:
        _, size, dtype, _ = layout_of(change)
        vector = flatten(change, dtype)
        numbers = vector.float() if dtype == torch.bfloat16 else vector  # NumPy has none
        indices = largest(np.abs(numbers.numpy()), int(num_of_share(share, size)))
        values = vector[torch.from_numpy(indices)]
        return to_bytes(values) + encode_indices(indices, size)

    def decode(message: bytes, like: Tree, rng: np.random.Generator) -> Tree:
        _, size, dtype, _ = layout_of(like)
        num = int(num_of_share(share, size))
        vector = torch.zeros(size, dtype=dtype)
        indices = decode_indices(message[num * dtype.itemsize :], num, size)
        vector[torch.from_numpy(indices)] = from_bytes(message, dtype, num)
        return unflatten(vector, like)

    return Compression("topk", encode, decode, feedback=feedback)
