"""Compression by factors: a matrix [n, m] is sent as [n, r] and [m, r].

A leaf of two or more dimensions is a matrix whose rows are its first dimension, as in PowerSGD.
Other leaves, and matrices that are smaller than their factors, are sent as they are.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from flfast.channel.compression.compression import Compression
from flfast.channel.compression.flat import flatten, from_bytes, layout_of, to_bytes
from flfast.state.tree import Tree, leaves, tree_map

Factorise = Callable[[Tensor, np.random.Generator], tuple[Tensor, Tensor]]


def by_factors(name: str, factorise: Factorise, *, rank: int, feedback: bool) -> Compression:
    """A compression that sends raw leaves, then the two factors of every matrix.

    `factorise` gives factors [n, rank] and [m, rank], whose product `A @ B.T` is sent, of a matrix
    [n, m] and the generator of the message.
    """

    def encode(change: Tree, rng: np.random.Generator) -> bytes:
        _, _, dtype, work = layout_of(change)
        largest = torch.finfo(dtype).max
        raw: list[Tensor] = []
        factors: list[Tensor] = []
        for leaf in leaves(change):
            if is_factored(leaf, rank):
                matrix = leaf.detach().reshape(len(leaf), -1).to(work)
                pair = factorise(matrix, rng)
                factors += [part.clamp(-largest, largest) for part in pair]
            else:
                raw.append(leaf)
        order = [*raw, *factors]
        return to_bytes(flatten(dict(zip(map(str, range(len(order))), order, strict=True)), dtype))

    def decode(message: bytes, like: Tree, rng: np.random.Generator) -> Tree:
        return _decoded(message, like, rank)

    return Compression(name, encode, decode, feedback=feedback)


def is_factored(leaf: Tensor, rank: int) -> bool:
    """Whether the factors of a leaf have fewer elements than the leaf."""
    if leaf.dim() < 2 or not leaf.numel():
        return False
    rows = leaf.shape[0]
    return rank * (rows + leaf.numel() // rows) < leaf.numel()


def scaled_to_one(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(matrix / scale, scale) with the largest magnitude as scale, so that products are finite."""
    largest = torch.maximum(matrix.amax(), -matrix.amin())
    scale = largest.clamp_min(torch.finfo(matrix.dtype).tiny)
    return matrix / scale, scale


def _decoded(message: bytes, like: Tree, rank: int) -> Tree:
    _, _, dtype, work = layout_of(like)
    num_raw = sum(leaf.numel() for leaf in leaves(like) if not is_factored(leaf, rank))
    vector = from_bytes(message, dtype, len(message) // dtype.itemsize)
    places = {True: num_raw, False: 0}

    def take(num: int, *, factored: bool) -> Tensor:
        start = places[factored]
        places[factored] += num
        return vector[start : start + num]

    def decoded(leaf: Tensor) -> Tensor:
        if not is_factored(leaf, rank):
            return take(leaf.numel(), factored=False).view(leaf.shape).to(leaf.dtype)
        rows, columns = leaf.shape[0], leaf.numel() // leaf.shape[0]
        left, right = (
            take(num * rank, factored=True).view(num, rank).to(work) for num in (rows, columns)
        )
        product = left @ right.T
        largest = torch.finfo(leaf.dtype).max
        if float(right.abs().max()) > largest / 1e4:  # sums of the product may overflow
            product = product.clamp_(-largest, largest)
        return product.view(leaf.shape).to(leaf.dtype)

    return tree_map(decoded, like)
