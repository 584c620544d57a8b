"""Colluding attacks: each against its paper's definition, with any number of attackers."""

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from flfast.channel.channel import Channel
from flfast.zoo.channel.attacks.alie import alie, z_max
from flfast.zoo.channel.attacks.ipm import ipm
from flfast.zoo.channel.attacks.min_max import min_max, min_sum

DIRECTIONS = ("std", "unit", "sign")
ATTACKS = {
    "alie": alie(fraction=0.2, z=1.5),
    "ipm": ipm(fraction=0.2, epsilon=0.5),
    "min_max": min_max(fraction=0.2, direction="std"),
    "min_sum": min_sum(fraction=0.2, direction="std"),
}
every = pytest.mark.parametrize("name", ATTACKS)
few = settings(max_examples=15)


@st.composite
def changes(draw, min_attackers=2):
    """Honest changes [A, D] of the attackers, float64."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num, width = draw(st.integers(min_attackers, 6)), draw(st.integers(1, 8))
    return torch.from_numpy(rng.standard_normal((num, width)) + rng.standard_normal(width))


def colluded(attack, found, num_clients=10):
    return attack.collude(found, num_clients, np.random.default_rng(0))


@every
def test_every_yaml_makes_its_attack(name, root):
    attack = instantiate(OmegaConf.load(root / "conf" / "attack" / f"{name}.yaml"))
    assert attack.fraction == 0.2
    torch.testing.assert_close(
        colluded(attack, torch.eye(3)), colluded(ATTACKS[name], torch.eye(3))
    )


@every
@few
@given(changes())
def test_all_attackers_send_the_same_and_their_order_does_not_matter(name, honest):
    found = colluded(ATTACKS[name], honest)
    assert found.shape == honest.shape
    assert (found == found[0]).all()
    torch.testing.assert_close(colluded(ATTACKS[name], honest.flip(0)), found)
    assert colluded(ATTACKS[name], honest.float()).dtype == torch.float32


@every
def test_no_attacker_one_attacker_and_equal_attackers(name):
    assert colluded(ATTACKS[name], torch.zeros(0, 4)).shape == (0, 4)
    assert colluded(ATTACKS[name], torch.zeros(3, 0)).shape == (3, 0)
    factor = -0.5 if name == "ipm" else 1.0
    for num in (1, 3):
        own = torch.tensor([[1.0, -2.0, 3.0]]).repeat(num, 1)
        torch.testing.assert_close(colluded(ATTACKS[name], own), factor * own)
    torch.testing.assert_close(colluded(ATTACKS[name], torch.zeros(2, 3)), torch.zeros(2, 3))


@few
@given(changes(), st.floats(0.1, 5))
def test_alie_and_ipm_follow_their_equations(honest, size):
    mean, std = honest.numpy().mean(axis=0), honest.numpy().std(axis=0)
    shifted = colluded(alie(fraction=0.2, z=size), honest)[0]
    np.testing.assert_allclose(shifted, mean + size * std, rtol=1e-9, atol=1e-12)
    turned = colluded(ipm(fraction=0.2, epsilon=size), honest)[0]
    np.testing.assert_allclose(turned, -size * mean, rtol=1e-9, atol=1e-12)


def test_z_max_is_the_papers():
    # 50 clients, 24 attackers: s = 26 - 24 = 2, and Phi(1.426) = 24 / 26.
    assert z_max(50, 24) == pytest.approx(1.426, abs=1e-3)
    # 10 clients, 2 attackers: s = 6 - 2 = 4 of 8 honest ones, the half.
    assert z_max(10, 2) == 0
    for num_clients in range(1, 12):
        found = [z_max(num_clients, num) for num in range(num_clients + 1)]
        assert all(0 <= z < 10 for z in found)
    honest = torch.randn(24, 5, dtype=torch.float64)
    expected = colluded(alie(fraction=0.2, z=z_max(50, 24)), honest)
    assert torch.equal(colluded(alie(fraction=0.2, z=None), honest, 50), expected)


def norms(rows, point):
    return np.linalg.norm(rows - point, axis=1)


@few
@given(changes(), st.sampled_from(DIRECTIONS))
def test_min_max_goes_as_far_as_the_largest_distance_allows(honest, direction):
    rows = honest.numpy()
    found = colluded(min_max(fraction=0.2, direction=direction), honest)[0].numpy()
    most = max(norms(rows, row).max() for row in rows)
    assert norms(rows, found).max() == pytest.approx(most, rel=1e-6)
    farther = found + 1e-3 * (found - rows.mean(axis=0))
    assert norms(rows, farther).max() > most
    assert_direction(rows, found, direction)


@few
@given(changes(), st.sampled_from(DIRECTIONS))
def test_min_sum_goes_as_far_as_the_largest_sum_of_squares_allows(honest, direction):
    rows = honest.numpy()
    found = colluded(min_sum(fraction=0.2, direction=direction), honest)[0].numpy()
    most = max((norms(rows, row) ** 2).sum() for row in rows)
    assert (norms(rows, found) ** 2).sum() == pytest.approx(most, rel=1e-6)
    assert_direction(rows, found, direction)


def assert_direction(rows, found, direction):
    mean = rows.mean(axis=0)
    expected = {"std": -rows.std(axis=0), "unit": -mean, "sign": -np.sign(mean)}[direction]
    moved = found - mean
    assert moved @ expected == pytest.approx(
        np.linalg.norm(moved) * np.linalg.norm(expected), rel=1e-9
    )


NAMES = (*ATTACKS, "gaussian", "pixel_pattern", "scaled", "sign_flip")


@pytest.mark.parametrize("name", NAMES)
def test_no_attackers_change_nothing_to_the_last_bit(name, root, make_data, make_federation):
    def weights(attack=None):
        federation = make_federation(make_data([3, 4, 5]), rounds=2)
        if attack is not None:
            federation.engine.channel = Channel(attack=attack)
        federation.run()
        return federation.weights()

    config = OmegaConf.load(root / "conf" / "attack" / f"{name}.yaml")
    found = weights(instantiate(config, fraction=0.0))
    torch.testing.assert_close(found, weights(), rtol=0, atol=0)
