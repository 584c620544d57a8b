"""Banded noise: its matrix, its sensitivity, what streams, and what it gains over a tree."""

from functools import partial
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from option_classes import called
from sampling import others_slow
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from flfast.channel.privacy.noise_sources import independent_noise, seeded_noise
from flfast.channel.privacy.participation import Participation
from flfast.state.tree import leaves
from flfast.zoo.channel.privacy.banded_factorisation import (
    banded_correlation,
    toeplitz_coefficients,
)
from flfast.zoo.channel.privacy.dp_ftrl import DpFtrl

SHAPES = st.integers(1, 24).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))
BUDGET = {"clip_norm": 1.0, "noise_multiplier": None, "epsilon": 8.0, "delta": 1e-5}
make_ftrl = partial(called, DpFtrl, **BUDGET, max_epsilon=None, secure=False)


def matrix(rounds, bands):
    """C of the module's docstring, by its definition."""
    coefficients = toeplitz_coefficients(rounds, bands)
    toeplitz = sum(np.diag(np.full(rounds - d, c), -d) for d, c in enumerate(coefficients))
    return toeplitz / np.linalg.norm(toeplitz, axis=0)


def streamed(privacy_or_correlate, rounds, source, skipped=(), like=None):
    """Noises of rounds, and the largest number of noises that were remembered."""
    like, memory, found, most = like or {"w": torch.zeros(3, dtype=torch.float64)}, {}, [], 0
    for round_idx in range(1, rounds + 1):
        if round_idx in skipped:
            continue
        z = source(like, round_idx)
        noise, memory = privacy_or_correlate(z, round_idx, memory)
        found.append(noise["w"])
        most = max(most, len(memory))
    return torch.stack(found), most


def errors(noising):
    """Variance of the noise in the sum up to each round [n], of C^-1 [n, n]."""
    return (np.cumsum(noising, axis=0) ** 2).sum(axis=1)


def error(rounds, bands):
    """Mean over rounds of `errors`."""
    return errors(np.linalg.inv(matrix(rounds, bands))).mean()


@pytest.mark.slow
@given(SHAPES)
@settings(deadline=None, max_examples=40)
def test_the_matrix(shape):
    rounds, bands = shape
    found = matrix(rounds, bands)
    np.testing.assert_array_equal(found, np.tril(found))
    np.testing.assert_array_equal(np.tril(found, -bands), 0)
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), 1, rtol=1e-12)
    assert (found[np.arange(rounds), np.arange(rounds)] > 0).all()
    again = toeplitz_coefficients(rounds, bands)
    np.testing.assert_array_equal(again, toeplitz_coefficients(rounds, bands))
    assert np.linalg.norm(again) == pytest.approx(1)


@given(SHAPES, st.data())
@settings(deadline=None, max_examples=18)
def test_what_streams_is_the_product_with_the_inverse(shape, data):
    """Rounds that release nothing are rows and columns that are not there."""
    rounds, bands = shape
    skipped = data.draw(st.sets(st.integers(1, rounds), max_size=rounds - 1))
    kept = [r - 1 for r in range(1, rounds + 1) if r not in skipped]
    source = seeded_noise(3, "test")
    like = {"w": torch.zeros(3, dtype=torch.float64)}
    z = torch.stack([source(like, r + 1)["w"] for r in kept]).numpy()
    correlate = banded_correlation(toeplitz_coefficients(rounds, bands), rounds)
    found, most = streamed(correlate, rounds, source, skipped)
    expected = np.linalg.solve(matrix(rounds, bands)[np.ix_(kept, kept)], z)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8, atol=1e-10)
    assert most <= bands - 1
    with pytest.raises(ValueError, match=f"the noise is for rounds 1 to {rounds}"):
        correlate(like, rounds + 1, {})


@pytest.mark.parametrize(
    ("rounds", "bands", "apart"), [(9, 3, 3), (8, 2, 3), (7, 1, 2), (6, 6, 6)]
)
def test_sensitivity(rounds, bands, apart):
    """No pattern of turns and no directions of changes move C x by more than sqrt(k)."""
    found, rng, largest = matrix(rounds, bands), np.random.default_rng(0), 0.0
    most = -(-rounds // apart)
    for k in range(1, most + 1):
        for turns in combinations(range(rounds), k):
            if any(b - a < apart for a, b in pairwise(turns)):
                continue
            changes = rng.normal(size=(5, k, 4))
            changes[0, :, 1:] = 0  # all in one direction
            changes /= np.linalg.norm(changes, axis=2, keepdims=True)
            moved = np.linalg.norm(np.einsum("rk,skd->srd", found[:, turns], changes), axis=(1, 2))
            np.testing.assert_allclose(moved, np.sqrt(k))
            largest = max(largest, moved.max())
    assert largest == pytest.approx(np.sqrt(most))
    # Clients that take turns are that far apart, and have that many turns.
    turns = Participation("cyclic", apart, 1, 1)
    assert (turns.rounds_per_pass, turns.most_rounds(rounds)) == (apart, most)


@pytest.mark.parametrize(("population", "cohort"), [(10, 3), (7, 2), (5, 5), (9, 4), (12, 4)])
def test_turns_are_a_pass_apart_when_the_cohort_does_not_divide_the_clients(population, cohort):
    who = Participation("cyclic", population, cohort, cohort)
    rounds = 23
    seen = [[] for _ in range(population)]
    for r in range(rounds):
        for place in range(r * cohort, (r + 1) * cohort):
            seen[place % population].append(r)
    gaps = [b - a for own in seen for a, b in pairwise(own)]
    assert min(gaps) >= who.rounds_per_pass
    assert max(map(len, seen)) == who.most_rounds(rounds)


@pytest.mark.parametrize("shape", [(12, 3), (16, 8), (16, 16)], ids=str)
def test_near_the_optimum_of_all_banded_matrices(shape):
    """Convex in X = C^T C, which is banded with diagonal 1; the optimum by its gradient."""
    rounds, bands = shape
    sums = np.tril(np.ones((rounds, rounds)))
    rows, columns = np.nonzero((np.tri(rounds) - np.tri(rounds, k=-bands)) * (1 - np.eye(rounds)))

    def objective(values):
        x = np.eye(rounds)
        x[rows, columns] = x[columns, rows] = values
        if np.linalg.eigvalsh(x)[0] <= 0:
            return 1e9, np.zeros_like(values)
        inverse = np.linalg.inv(x)
        gradient = -inverse @ sums.T @ sums @ inverse
        return np.trace(sums @ inverse @ sums.T) / rounds, 2 * gradient[rows, columns] / rounds

    own = matrix(rounds, bands)
    start = (own.T @ own)[rows, columns]
    assert objective(start)[0] == pytest.approx(error(rounds, bands))
    best = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    assert np.abs(objective(best.x)[1]).max() < 0.02  # convex: this is the optimum
    assert 0.96 * error(rounds, bands) < best.fun < error(rounds, bands)


def test_more_bands_are_less_noise():
    found = [error(40, bands) for bands in (1, 2, 4, 8, 20, 40)]
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(20.5)  # of independent noise, (n + 1) / 2


@pytest.mark.parametrize("rounds", [50, 400])
def test_the_optimiser_gains_on_its_start(rounds):
    """The first b coefficients of the square root are not optimal for few bands."""
    for bands in (2, 8):
        place = np.arange(1, bands)
        start = np.r_[1.0, np.cumprod((2 * place - 1) / (2 * place))]
        toeplitz = sum(np.diag(np.full(rounds - d, c), -d) for d, c in enumerate(start))
        start_matrix = toeplitz / np.linalg.norm(toeplitz, axis=0)
        inverse = solve_triangular(start_matrix, np.eye(rounds), lower=True)
        assert error(rounds, bands) < errors(inverse).mean()


def test_one_band_is_independent_noise_to_the_last_bit():
    correlate = banded_correlation(toeplitz_coefficients(7, 1), 7)
    source = seeded_noise(1, "central noise")
    like = {"w": torch.zeros(9)}
    for round_idx in range(1, 8):
        z = independent_noise(like, 0.3, round_idx, source)
        noise, memory = correlate(z, round_idx, {})
        assert memory == {}
        assert torch.equal(noise["w"], z["w"])


SETTINGS = [(8, 4, 32), (16, 8, 64), (10, 10, 10)]
"""Rounds of a pass, bands, rounds."""


def measured(privacy, rounds):
    """Mean over rounds of the variance of the noise in sums, over 20,000 elements."""
    source, memory, total, found = seeded_noise(2, "central noise"), {}, 0.0, []
    like = {"w": torch.zeros(20_000)}
    for round_idx in range(1, rounds + 1):
        noise = privacy.central_noise(like, privacy.central_multiplier, round_idx, source)
        if privacy.correlate is not None:
            noise, memory = privacy.correlate(noise, round_idx, memory)
        total = total + noise["w"].double()
        found.append(float(total.var()))
    return np.mean(found)


@pytest.mark.parametrize(("per_pass", "bands", "rounds"), others_slow(SETTINGS, SETTINGS[:1]))
def test_measured_noise_is_that_of_theory_and_below_the_trees(per_pass, bands, rounds):
    """At the same epsilon, by the same accountant."""
    who = {"participation": Participation("cyclic", per_pass, 1, 1), "rounds": rounds}
    tree = make_ftrl(mechanism="tree", bands=None, **who)
    banded = make_ftrl(mechanism="banded", bands=bands, **who)
    assert 7.9 < banded.epsilon(rounds) <= 8 and 7.9 < tree.epsilon(rounds) <= 8
    last = [(r % per_pass or per_pass).bit_count() for r in range(1, rounds + 1)]
    passes = [(r - 1) // per_pass * per_pass.bit_count() for r in range(1, rounds + 1)]
    of_tree = tree.central_multiplier**2 * np.mean(np.add(last, passes))
    of_bands = banded.central_multiplier**2 * error(rounds, bands)
    assert measured(tree, rounds) == pytest.approx(of_tree, rel=0.05)
    assert measured(banded, rounds) == pytest.approx(of_bands, rel=0.05)
    assert of_bands < 0.9 * of_tree


def test_options():
    make = partial(make_ftrl, participation=Participation("cyclic", 100, 2, 2), rounds=60)
    for bands, message in [
        (51, r"privacy.bands=51 .*allowed: null, or with banded 1 to 50,"),
        (1000, r"privacy.bands=1000 with"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(mechanism="banded", bands=bands)
    with pytest.raises(
        ValueError, match=r"privacy.bands=3 with privacy.mechanism=tree: allowed: null"
    ):
        make(mechanism="tree", bands=3)
    source, like = seeded_noise(0, "test"), {"w": torch.zeros(2)}
    for bands, remembered in [(None, 31), (50, 49), (1, 0)]:
        found, most = streamed(
            make(mechanism="banded", bands=bands).correlate, 60, source, like=like
        )
        assert most == remembered and found.dtype == torch.float32
    without = make(mechanism="banded", bands=4, clip_norm=None, noise_multiplier=0.0, epsilon=None)
    assert without.correlate is None and without.central_noise is None


def test_a_budget_that_ends_the_run_shortens_the_matrix():
    who = {"participation": Participation("cyclic", 10, 1, 1), "rounds": 40}
    noise = {"noise_multiplier": 1.0, "epsilon": None}
    whole = make_ftrl(mechanism="banded", bands=10, **noise, **who)
    limit = whole.epsilon(7)
    short = called(
        DpFtrl,
        **{**BUDGET, **noise},
        max_epsilon=limit,
        secure=False,
        mechanism="banded",
        bands=10,
        **who,
    )
    assert short.rounds == 10
    source = seeded_noise(0, "test")
    found, _ = streamed(short.correlate, 10, source)
    assert (errors(np.linalg.inv(matrix(10, 10))).mean()) < error(40, 10)
    z = torch.stack(
        [source({"w": torch.zeros(3, dtype=torch.float64)}, r)["w"] for r in range(1, 11)]
    )
    torch.testing.assert_close(torch.from_numpy(matrix(10, 10)) @ found, z)


def test_earlier_noise_is_not_changed():
    """Checkpoints are written while the next round is computed."""
    correlate = banded_correlation(toeplitz_coefficients(6, 3), 6)
    source, like, memory = seeded_noise(0, "test"), {"w": torch.zeros(4)}, {}
    for round_idx in range(1, 7):
        before = [leaf.clone() for leaf in leaves(memory)]
        given_z = source(like, round_idx)
        old, z = memory, given_z["w"].clone()
        _, memory = correlate(given_z, round_idx, memory)
        for now, then in zip(leaves(old), before, strict=True):
            assert torch.equal(now, then)
        assert torch.equal(given_z["w"], z)
