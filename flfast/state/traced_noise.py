"""Normal noise as tensor operations of a key and a step, for steps that are traced.

A traced local step cannot draw from a torch generator: the numbers would be constants of the
trace. Here element i of step t is a hash of (key, t, i): SplitMix64, as in `randomness.uniforms`
(Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014). The method of
Box and Muller makes two normal numbers from the 64 bits. Both engines thus draw the same noise.

The hash is not cryptographic.
"""

import math

import torch
from torch import Tensor

from flfast.state.tree import Tree


def _signed(number: int) -> int:
    """The int64 with the same bits; torch has no arithmetic of uint64."""
    return number - (1 << 64) if number >> 63 else number


_STEP = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_LOW = (1 << 32) - 1


def traced_normal(key: Tensor, step: Tensor, like: Tree) -> Tree:
    """Standard normal numbers of the leaves' shapes and types, computed in at least float32.

    `key` and `step` are int64 []; other steps have other numbers. The leaves are floating-point,
    on one device.
    """
    num = sum(leaf.numel() for leaf in like.values())
    if not num:
        return dict(like)
    first = next(iter(like.values()))
    bits = _bits(key, step, num // 2 + 1, first.device)
    largest = max((leaf.dtype for leaf in like.values()), key=lambda dtype: dtype.itemsize)
    dtype = torch.promote_types(largest, torch.float32)
    radius = (-2 * _uniform(bits & _LOW, dtype).log()).sqrt()
    angle = 2 * math.pi * _uniform(_shifted(bits, 32), dtype)
    vector = torch.cat([radius * angle.cos(), radius * angle.sin()])
    parts = vector[:num].split([leaf.numel() for leaf in like.values()])
    pairs = zip(parts, like.items(), strict=True)
    return {name: part.view(leaf.shape).to(leaf.dtype) for part, (name, leaf) in pairs}


def traced_uniform(key: Tensor, step: Tensor, num: int, like: Tensor) -> Tensor:
    """Uniform numbers in (0, 1], [num]; `key` and `step` as in `traced_normal`.

    They are on the device of `like`, in its data type, but at least float32.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    return _uniform(_shifted(_bits(key, step, num, like.device), 32), dtype)


def traced_index(key: Tensor, step: Tensor, num: int) -> Tensor:
    """One of `num` numbers from 0 on, int64 []; `key` and `step` as in `traced_normal`."""
    return _shifted(_mixed(key + step * _STEP), 1) % num


def _bits(key: Tensor, step: Tensor, num: int, device: torch.device) -> Tensor:
    counter = torch.arange(1, num + 1, device=device)
    return _mixed(_mixed(key + step * _STEP) + counter * _STEP)


def _uniform(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers in (0, 1] from integers in [0, 2^32)."""
    return (bits.to(dtype) + 0.5) * 2.0**-32


def _mixed(z: Tensor) -> Tensor:
    """SplitMix64's hash of int64 numbers, modulo 2^64."""
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, by: int) -> Tensor:
    """Logical shift to the right; torch's copies the sign."""
    return (z >> by) & ((1 << (64 - by)) - 1)
