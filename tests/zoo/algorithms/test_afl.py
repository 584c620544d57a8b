"""AFL against its equations in NumPy, its limit, and the projection on the simplex."""

import numpy as np
import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, run, server_of
from engine_runs import mlp

from flfast.zoo.algorithms.afl import afl
from flfast.zoo.algorithms.kit.nearest_mixture import nearest_mixture

LAMBDA_LR = 0.2


def loss(reference, w, k):
    """Mean cross-entropy of a client's training examples."""
    examples = reference.data.examples
    at = reference.data.train_clients.indices_of(k)
    x, y = examples.inputs[at].double().numpy(), examples.targets[at].numpy()
    z = x @ w[:-3].reshape(3, -1).T + w[-3:]
    return (np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean()


def nearest(values):
    """The projection on the simplex, by bisection on the shift."""
    low, high = values.min() - 1, values.max()
    for _ in range(200):
        shift = (low + high) / 2
        low, high = (shift, high) if np.maximum(values - shift, 0).sum() > 1 else (low, shift)
    return np.maximum(values - low, 0)


def mohri(reference, w, cohorts):
    """Agnostic federated learning of Mohri et al. 2019 with local training."""
    shares = np.full(reference.num_clients, 1 / reference.num_clients)
    for round_idx, cohort in enumerate(cohorts, start=1):
        weights = np.maximum(shares[cohort], 1e-10)
        raised = shares.copy()
        raised[cohort] += LAMBDA_LR * np.array([loss(reference, w, k) for k in cohort])
        w = np.average([reference.sgd(k, round_idx, w) for k in cohort], axis=0, weights=weights)
        shares = nearest(raised)
        yield w


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.75}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 2])
def test_trajectories_follow_the_paper(assert_follows, batch_size, sampling):
    federation = assert_follows(
        afl(lambda_lr=LAMBDA_LR, num_clients=4),
        mohri,
        batch_size=batch_size,
        sampling=sampling,
        lr=0.3,
    )
    shares = federation.server["lambda"]
    assert float(shares.sum()) == pytest.approx(1)
    assert shares.max() - shares.min() > 0.05


def test_with_a_step_of_zero_it_is_fedavg(make_data, make_federation):
    def solve(name, **algorithm):
        options = {"sizes": (7, 2, 5), "rounds": 3, "algorithm": algorithm}
        return run(federation_of(make_data, make_federation, name, mlp().double(), **options))

    fedavg = solve("fedavg", weighting="uniform")
    found = solve("afl", lambda_lr=0.0)
    assert_leaves_close(server_of(found), server_of(fedavg))


@pytest.mark.parametrize("seed", range(5))
def test_the_projection_is_the_nearest_point(seed):
    values = np.random.default_rng(seed).normal(size=6)
    np.testing.assert_allclose(nearest_mixture(torch.tensor(values)), nearest(values), atol=1e-12)


def test_rows_are_projected_one_by_one():
    rows = torch.tensor(np.random.default_rng(0).normal(size=(5, 4)))
    found = nearest_mixture(rows)
    assert all(
        torch.equal(nearest_mixture(row), own) for row, own in zip(rows, found, strict=True)
    )


def test_the_projection_of_values_that_swamp_1():
    assert nearest_mixture(torch.tensor([1e17, 3e17, 1e17])).tolist() == [0, 1, 0]
