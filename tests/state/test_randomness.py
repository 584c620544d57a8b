import zlib

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.state.randomness import _seed_sequence, generator, seed_torch, uniforms

PATHS = [
    (0, "shuffle", 1, 2),
    (1, "shuffle", 1, 2),
    (0, "cohort", 1, 2),
    (0, "shuffle", 2, 1),
    (0, "shuffle", 1, 2, 0),
]


def test_every_part_of_the_path_changes_the_numbers():
    draws = {float(generator(*path).random()) for path in PATHS}
    assert len(draws) == 5


def test_seed_torch_repeats_the_same_numbers():
    seed_torch(0, "x", 1)
    first = torch.rand(2)
    seed_torch(0, "x", 1)
    assert torch.equal(first, torch.rand(2))


ANY = st.one_of(st.integers(2**32 - 2, 2**32 + 2), st.integers(0, 2**64))


@given(ANY, st.lists(ANY, max_size=3))
def test_seeds_and_paths_are_entropy_as_numpy_reads_it(seed, path):
    expected = np.random.SeedSequence([seed, zlib.crc32(b"x"), *path])
    found = _seed_sequence(seed, "x", tuple(path))
    assert found.generate_state(4).tolist() == expected.generate_state(4).tolist()


IDS = st.lists(st.integers(0, 2**62), max_size=50)


@given(IDS, st.integers(0, 2**63 - 1), st.lists(st.integers(0, 2**31 - 1), max_size=2))
def test_uniforms_do_not_depend_on_order_and_company(ids, seed, path):
    numbers = uniforms(seed, "x", np.array(ids, dtype=np.int64), *path)
    again = [uniforms(seed, "x", np.array([one]), *path)[0] for one in ids]
    assert numbers.tolist() == again
    assert ((numbers > 0) & (numbers < 1)).all()


@pytest.mark.parametrize("path", [(0, "x"), (1, "x"), (0, "x", 7)])
@pytest.mark.parametrize("step", [1, 2, 1000, 2**32])
def test_uniforms_are_uniform(path, step):
    seed, purpose, *rest = path
    numbers = uniforms(seed, purpose, step * np.arange(50_000), *rest)
    assert scipy.stats.kstest(numbers, "uniform").pvalue > 0.001
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.02


def test_uniforms_of_other_seeds_purposes_and_rounds_do_not_repeat():
    """Not even for other ids: streams do not overlap."""
    ids = np.arange(20_000)
    streams = [uniforms(*path[:2], ids, *path[2:]) for path in PATHS]
    assert len(np.unique(np.concatenate(streams))) == len(PATHS) * len(ids)
    # The standard deviation of a correlation of 20,000 independent pairs is 0.007.
    assert np.abs(np.corrcoef(streams) - np.eye(len(PATHS))).max() < 0.035


def test_the_largest_uniform_is_below_one():
    """The client whose bits are all ones, found by running SplitMix64 backwards."""
    mask = 2**64 - 1
    unxor = lambda z, bits: z ^ (z >> bits) ^ (z >> 2 * bits)  # noqa: E731
    z = unxor(mask, 31) * pow(0x94D049BB133111EB, -1, 2**64) & mask
    z = unxor(z, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) & mask
    state = unxor(z, 30)
    key = int(_seed_sequence(0, "x", ()).generate_state(1, np.uint64)[0])
    one = (state - key) * pow(0x9E3779B97F4A7C15, -1, 2**64) - 1 & mask
    assert 1 - 1e-15 < uniforms(0, "x", np.array([one], dtype=np.uint64))[0] < 1
