"""FedMGDA+ against its equations, and its weights against brute force and a bound."""

import itertools
from itertools import product

import numpy as np
import pytest
import torch
from algorithms_by_name import algorithm_of, federation_of, run
from engine_runs import mlp
from sampling import others_slow

from flfast.state.tree import leaves
from flfast.zoo.algorithms.fedmgda import fedmgda
from flfast.zoo.algorithms.kit.min_norm import min_norm_weights


def brute_force(vectors, center, radius):
    """The shortest average, over all choices of weights at their bounds."""
    gram, num = vectors @ vectors.T, len(center)
    low, high = np.maximum(center - radius, 0), np.minimum(center + radius, 1)
    best = None
    for places in itertools.product("lhf", repeat=num):
        free = [i for i, place in enumerate(places) if place == "f"]
        x = np.array([{"l": low, "h": high, "f": low}[p][i] for i, p in enumerate(places)])
        if free:
            fixed = [i for i in range(num) if i not in free]
            system = np.ones((len(free) + 1, len(free) + 1))
            system[:-1, :-1], system[-1, -1] = gram[np.ix_(free, free)], 0
            right = np.append(-gram[np.ix_(free, fixed)] @ x[fixed], 1 - x[fixed].sum())
            x[free] = np.linalg.lstsq(system, right, rcond=None)[0][:-1]
        inside = (x >= low - 1e-12).all() and (x <= high + 1e-12).all()
        if inside and abs(x.sum() - 1) < 1e-12 and (best is None or x @ gram @ x < best):
            best, average = x @ gram @ x, x @ vectors
    return average


def hu(epsilon, server_lr, weighting):
    """Algorithm 1 of Hu et al. 2022 on the clients of `Reference`."""

    def equations(reference, w, cohorts):
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                updates = [w - reference.sgd(k, round_idx, w) for k in cohort]
                units = np.stack([update / np.linalg.norm(update) for update in updates])
                sizes = [reference.size(k) if weighting == "samples" else 1 for k in cohort]
                center = np.array(sizes) / sum(sizes)
                w = w - server_lr * brute_force(units, center, epsilon)
            yield w

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(
    ("batch_size", "epsilon", "weighting"),
    [(-1, 1.0, "uniform"), (2, 0.1, "samples"), (2, 0.02, "uniform")],
)
def test_trajectories_follow_the_paper(assert_follows, batch_size, epsilon, weighting, sampling):
    options = {"epsilon": epsilon, "server_lr": 0.4, "weighting": weighting}
    assert_follows(fedmgda(**options), hu(**options), batch_size=batch_size, sampling=sampling)


RADII = [0.0, 0.05, 0.2, 1.0]
DIMS = [2, 3, 20]  # with 2 and 3 the Gram matrix is singular


@pytest.mark.parametrize(
    ("dims", "radius"),
    others_slow([*product(DIMS, RADII)], [(2, 0.0), (3, 0.05), (20, 0.2), (2, 1.0)]),
)
def test_weights_are_those_of_brute_force(dims, radius):
    rng = np.random.default_rng(dims)
    for _ in range(5):
        vectors = rng.normal(0.5, 1, (5, dims))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        center = rng.dirichlet(np.ones(5))
        x = min_norm_weights(*map(torch.from_numpy, (vectors @ vectors.T, center)), radius).numpy()
        assert x.sum() == pytest.approx(1)
        assert (x >= 0).all()
        assert abs(x - center).max() <= radius + 1e-12
        np.testing.assert_allclose(x @ vectors, brute_force(vectors, center, radius), atol=1e-8)


@pytest.mark.parametrize("dims", [10, 500])
def test_no_other_weights_give_a_shorter_average(dims):
    """The lowest value of the linearised objective bounds the objective from below."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(0.1, 1, (80, dims))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    gram, center = vectors @ vectors.T, np.full(80, 1 / 80)
    x = min_norm_weights(torch.from_numpy(gram), torch.from_numpy(center), 0.01).numpy()
    slope, lowest = 2 * gram @ x, center - 0.01
    for i in slope.argsort():
        lowest[i] += min(0.02, 1 - lowest.sum())
    assert slope @ (x - lowest) < 1e-10
    assert x @ gram @ x < 0.99 * center @ gram @ center


def test_with_epsilon_zero_it_is_fedavg_of_normalised_updates(assert_follows):
    def equations(reference, w, cohorts):
        for round_idx, cohort in enumerate(cohorts, start=1):
            updates = [w - reference.sgd(k, round_idx, w) for k in cohort]
            units = [update / np.linalg.norm(update) for update in updates]
            w = w - np.average(units, axis=0, weights=[reference.size(k) for k in cohort])
            yield w

    assert_follows(algorithm_of("fedmgda", mlp(), epsilon=0.0), equations)


def test_clients_that_do_not_move_leave_the_model(make_data, make_federation):
    federation = federation_of(make_data, make_federation, "fedmgda", mlp(), lr=0.0)
    before = list(leaves(federation.initial["params"]))
    for found, expected in zip(leaves(run(federation).server["params"]), before, strict=True):
        assert torch.equal(found, expected)
