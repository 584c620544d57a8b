import numpy as np
import pytest
from scipy.special import softmax

from flfast.datamodules.partitions.dirichlet import dirichlet_logits


def draws(alpha, num, dim, seed=0):
    return softmax(
        dirichlet_logits(np.full((num, dim), alpha), np.random.default_rng(seed)), axis=-1
    )


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-6, 1e-3, 0.05, 1, 1e6, 1e300, np.inf])
def test_draws_are_points_of_the_simplex_for_any_concentration(alpha):
    shares = draws(alpha, 50, 1000)
    assert (shares >= 0).all()
    np.testing.assert_allclose(shares.sum(axis=-1), 1)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1, 10])
def test_moments_are_those_of_the_dirichlet_distribution(alpha):
    shares = draws(alpha, 40_000, 4)
    # Var = m (1 - m) / (D alpha + 1) with mean m = 1 / D.
    variance = 0.25 * 0.75 / (4 * alpha + 1)
    np.testing.assert_allclose(shares.mean(axis=0), 0.25, atol=5 * np.sqrt(variance / 40_000))
    np.testing.assert_allclose(shares.var(axis=0), variance, rtol=0.05)


def test_a_vanishing_concentration_gives_one_hot_draws_of_every_kind():
    shares = draws(1e-6, 200, 5)
    np.testing.assert_allclose(shares.max(axis=-1), 1)
    assert set(shares.argmax(axis=-1)) == set(range(5))


def test_the_mean_follows_the_concentrations():
    concentration = np.tile([1.0, 3.0], (20_000, 1))
    shares = softmax(dirichlet_logits(concentration, np.random.default_rng(0)), axis=-1)
    np.testing.assert_allclose(shares.mean(axis=0), [0.25, 0.75], atol=0.01)
