"""Noise: its statistics, what it depends on, and the tree that makes it cancel."""

import math

import pytest
import scipy
import torch

from flfast.channel.privacy.noise_sources import (
    draw_secure_seed,
    independent_noise,
    secure_noise,
    seeded_noise,
)
from flfast.state.traced_noise import traced_normal
from flfast.state.tree import leaves, tree_map
from flfast.zoo.channel.privacy.dp_ftrl import changed_nodes, tree_depth, tree_noise

LIKE = {"params": {"w": torch.zeros(101, 99), "b": torch.zeros(7, dtype=torch.float64)}}


def sources(purpose="central noise"):
    return {
        "seeded": seeded_noise(3, purpose),
        "secure": secure_noise(2**255 + 5, purpose),
        "traced": lambda like, *path: {
            "params": traced_normal(torch.tensor(5), torch.tensor(path[0]), like["params"])
        },
    }


@pytest.mark.parametrize("name", sources())
def test_standard_normal(name):
    source = sources()[name]
    first, second = (source(LIKE, round_idx)["params"]["w"] for round_idx in (1, 2))
    values = first.flatten().double().numpy()
    assert scipy.stats.kstest(values, "norm").pvalue > 0.01
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.03
    halves = first.flatten()[:9998].view(2, -1)  # Box and Muller's pairs are half a vector apart
    assert abs(torch.corrcoef(halves)[0, 1]) < 0.05


@pytest.mark.parametrize("name", sources())
def test_a_function_of_the_path(name):
    source = sources()[name]
    found = source(LIKE, 4)
    assert [leaf.dtype for leaf in leaves(found)] == [leaf.dtype for leaf in leaves(LIKE)]
    torch.testing.assert_close(source(LIKE, 4), found, rtol=0, atol=0)
    assert not torch.equal(source(LIKE, 5)["params"]["w"], found["params"]["w"])


@pytest.mark.parametrize("name", ["seeded", "secure"])
def test_purposes_and_seeds_differ(name):
    makers = {"seeded": seeded_noise, "secure": secure_noise}
    noise = [
        makers[name](seed, purpose)(LIKE, *path)["params"]["w"]
        for seed, purpose, path in [
            *((3, "central noise", (1,)), (4, "central noise", (1,))),
            *((3, "local noise", (1,)), (3, "central noise", (2,))),
        ]
    ]
    assert len({float(x.sum()) for x in noise}) == len(noise)
    assert draw_secure_seed() != draw_secure_seed()


def test_variance_of_central_noise():
    """Over 10,000 elements, the empirical variance is within 5 % of what was asked for."""
    noise = independent_noise(LIKE, 0.3, 7, seeded_noise(1, "central noise"))
    assert float(noise["params"]["w"].var()) == pytest.approx(0.09, rel=0.05)


@pytest.mark.parametrize("rounds_per_pass", [1, 5, 8])
def test_sums_of_tree_noise(rounds_per_pass):
    """The sum over t rounds of a pass has the variance of as many nodes as t has digits 1."""
    source, noise = seeded_noise(1, "tree"), tree_noise(rounds_per_pass)
    total = before = tree_map(torch.zeros_like, LIKE)
    for round_idx in range(1, 2 * rounds_per_pass + 1):
        total = tree_map(torch.add, total, noise(LIKE, 2.0, round_idx, source))
        place = (round_idx - 1) % rounds_per_pass + 1
        of_pass = (total["params"]["w"] - before["params"]["w"]).var()
        assert float(of_pass) == pytest.approx(4 * place.bit_count(), rel=0.06)
        before = total if place == rounds_per_pass else before


def test_nodes_of_a_tree():
    """The nodes cover each leaf once, and a leaf is in at most `tree_depth` nodes."""
    nodes, used = set(), set()
    for leaf in range(1, 20):
        new, *replaced = changed_nodes(leaf)
        assert set(replaced) <= nodes
        assert new not in used
        nodes, used = (nodes - set(replaced)) | {new}, used | {new}
        covered = [
            k for level, i in nodes for k in range(((i - 1) << level) + 1, (i << level) + 1)
        ]
        assert sorted(covered) == list(range(1, leaf + 1))
        containing = max(
            sum(((i - 1) << level) < k <= (i << level) for level, i in used)
            for k in range(1, leaf + 1)
        )
        assert containing == tree_depth(leaf) == math.ceil(math.log2(leaf + 1))
