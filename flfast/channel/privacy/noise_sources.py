"""Sources of noise, and independent noise for every round.

`seeded_noise` depends on the run's seed, so that a run can be repeated and resumed. Whoever knows
the seed can subtract the noise. `secure_noise` expands 256 bits of the system's randomness with
ChaCha20 instead.

Noise is rounded to floating-point numbers. Mironov: On Significance of the Least Significant Bits
for Differential Privacy, CCS 2012, shows what an attacker may read from the last bits. Nothing
here protects against that.
"""

import math
import secrets
import zlib

import numpy as np
import torch
from torch import Tensor

from flfast.channel.privacy.privacy import NoiseSource
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, tree_map


def seeded_noise(seed: int, purpose: str) -> NoiseSource:
    """Noise that can be repeated, for a purpose such as `central noise`."""

    def draw(like: Tree, *path: int) -> Tree:
        rng = torch_generator(seed, purpose, *path)
        return tree_map(lambda leaf: torch.randn(leaf.shape, generator=rng).to(leaf.dtype), like)

    return draw


def draw_secure_seed() -> int:
    """A seed of 256 bits from the system's randomness.

    With several ranks, one draws it and sends it to the others, because all of them must add the
    same noise.
    """
    return secrets.randbits(256)


def secure_noise(seed: int, purpose: str) -> NoiseSource:
    """Noise that nobody can predict without the seed, which is of `draw_secure_seed`.

    Raises:
        ImportError: if the package `cryptography` is missing.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256, Hash

    def draw(like: Tree, *path: int) -> Tree:
        digest = Hash(SHA256())
        for part in (seed, zlib.crc32(purpose.encode()), len(path), *path):
            digest.update(part.to_bytes(32, "little"))
        # The key is used once, so the nonce may be constant.
        stream = Cipher(ChaCha20(digest.finalize(), bytes(16)), mode=None).encryptor()

        def normal(leaf: Tensor) -> Tensor:
            pairs = leaf.numel() // 2 + 1
            bits = np.frombuffer(stream.update(bytes(8 * pairs)), dtype=np.uint32)
            return _box_muller(bits)[: leaf.numel()].view(leaf.shape).to(leaf.dtype)

        return tree_map(normal, like)

    return draw


def _box_muller(bits: np.ndarray) -> Tensor:
    """Standard normal numbers float64 [2 * P] from uint32 [2 * P]."""
    radii, angles = torch.from_numpy((bits.astype(np.float64) + 0.5) / 2.0**32).view(2, -1)
    radius, angle = (-2 * radii.log()).sqrt(), 2 * math.pi * angles
    return torch.cat([radius * angle.cos(), radius * angle.sin()])


def independent_noise(like: Tree, std: float, round_idx: int, source: NoiseSource) -> Tree:
    """New noise in every round; see `CentralNoise`."""
    return tree_map(lambda z: z * std, source(like, round_idx))
