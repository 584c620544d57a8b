"""Random generators as a function of (seed, purpose, round, client, ...) alone.

All engines, strategies, device counts and resumed runs therefore draw the same numbers.
"""

import zlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch


def _seed_sequence(seed: int, purpose: str, path: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *path])


def generator(seed: int, purpose: str, *path: int) -> np.random.Generator:
    """NumPy generator for one purpose, independent of all others.

    Args:
        seed: the run's seed, >= 0.
        purpose: what the numbers are used for, such as `"shuffle"`.
        path: round, client, epoch, ...; integers >= 0.

    >>> float(generator(1, "shuffle", 3).random()) == float(generator(1, "shuffle", 3).random())
    True
    """
    return np.random.Generator(np.random.Philox(_seed_sequence(seed, purpose, path)))


def torch_generator(seed: int, purpose: str, *path: int) -> torch.Generator:
    """Independent torch generator on the CPU for one purpose; see `generator`."""
    return torch.Generator().manual_seed(_torch_seed(seed, purpose, path))


def seed_torch(seed: int, purpose: str, *path: int) -> None:
    """Seed torch's global generators, which dropout and initialisers use."""
    own_seed = _torch_seed(seed, purpose, path)
    for set_seed in _seeders():
        set_seed(own_seed)


def _torch_seed(seed: int, purpose: str, path: tuple[int, ...]) -> int:
    state = _seed_sequence(seed, purpose, path).generate_state(1, np.uint64)[0]
    # 63 bits: torch refuses seeds that do not fit into a signed 64-bit integer.
    return int(state >> np.uint64(1))


@lru_cache
def _seeders() -> tuple[Callable[[int], object], ...]:
    # Not torch.manual_seed: each call formats a stack trace for every absent accelerator.
    found: list[Callable[[int], object]] = [torch.default_generator.manual_seed]
    if torch.cuda.is_available():
        found.append(torch.cuda.manual_seed_all)
    if torch.backends.mps.is_available():
        found.append(torch.mps.manual_seed)
    return tuple(found)
