"""Random generators as a function of (seed, purpose, round, client, ...) alone.

All engines, strategies, device counts and resumed runs therefore draw the same numbers.
"""

import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch


def _seed_sequence(seed: int, purpose: str, path: tuple[int, ...]) -> np.random.SeedSequence:
    words = [seed, zlib.crc32(purpose.encode()), *path]
    # An array of words is the same entropy as a list of small numbers, and read twice as fast.
    return np.random.SeedSequence(np.array(words, np.uint32) if max(words) < 1 << 32 else words)


def generator(seed: int, purpose: str, *path: int) -> np.random.Generator:
    """NumPy generator for one purpose, such as `"shuffle"`, independent of all others.

    The seed is the run's, and the path is round, client, epoch, ...; integers >= 0.

    >>> float(generator(1, "shuffle", 3).random()) == float(generator(1, "shuffle", 3).random())
    True
    """
    return np.random.Generator(np.random.Philox(_seed_sequence(seed, purpose, path)))


def uniforms(seed: int, purpose: str, ids: np.ndarray, *path: int) -> np.ndarray:
    """A uniform number in (0, 1) for each id, float64 [K], a function of seed, purpose and id.

    For properties of clients in large populations, where a generator for each would be slow.
    """
    key = _seed_sequence(seed, purpose, path).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64
        # SplitMix64: Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014.
        z = key + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    # 52 bits: with 53, the largest number would be rounded to 1.
    return ((z >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


def torch_generator(seed: int, purpose: str, *path: int) -> torch.Generator:
    """Independent torch generator on the CPU for one purpose; see `generator`."""
    return torch.Generator().manual_seed(_torch_seed(seed, purpose, path))


def seed_torch(seed: int, purpose: str, *path: int, others: bool = False) -> None:
    """Seed torch's global generators, which dropout and initialisers use.

    `others` are those of Python and NumPy, which models of users may use.
    """
    own_seed = _torch_seed(seed, purpose, path)
    for set_seed in _seeders():
        set_seed(own_seed)
    if others:
        random.seed(own_seed)
        np.random.seed(own_seed % 2**32)  # noqa: NPY002, TID251


@contextmanager
def same_generators() -> Iterator[list[str]]:
    """Put the global generators of Python and NumPy back.

    Yields:
        The names of those that were drawn from; filled at the end.
    """
    drawn: list[str] = []
    python, numpy = random.getstate(), _numpy_state()
    try:
        yield drawn
    finally:
        if random.getstate() != python:
            drawn.append("Python's random")
        if (now := _numpy_state())[2:] != numpy[2:] or (now[1] != numpy[1]).any():
            drawn.append("NumPy's global generator")
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _numpy_state() -> Any:
    return np.random.get_state()  # noqa: NPY002 - models of users draw from it


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
