"""FedADMM against its equations, its invariant, and its convergence to the optimum."""

import numpy as np
import pytest
from references import initial, vector

from flfast.state.weights import read_weights
from flfast.zoo.algorithms.fedadmm import fedadmm


def make(rho, server_lr=1.0):
    return fedadmm(rho=rho, server_lr=server_lr, initial=read_weights(initial(5, 3)))


def gong(rho, server_lr):
    """The algorithm of Gong et al. 2022, with local gradient descent from theta as the solver."""

    def equations(reference, theta, cohorts):
        duals = np.zeros((reference.num_clients, len(theta)))
        models = np.tile(theta, (reference.num_clients, 1))
        for round_idx, cohort in enumerate(cohorts, start=1):
            before = (models + duals / rho).sum(axis=0)
            for k in cohort:
                y = duals[k].copy()
                models[k] = reference.sgd(
                    *(k, round_idx, theta),
                    change=lambda w, y=y, t=theta: y + rho * (w - t),
                )
                duals[k] += rho * (models[k] - theta)
            change = (models + duals / rho).sum(axis=0) - before
            theta = theta + server_lr * change / reference.num_clients
            yield theta

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "server_lr"), [(-1, 1.0), (2, 0.7)])
def test_trajectories_follow_the_paper(assert_follows, batch_size, server_lr, sampling):
    made, equations = make(0.4, server_lr), gong(0.4, server_lr)
    assert_follows(made, equations, batch_size=batch_size, sampling=sampling)


def test_the_server_has_the_mean_of_all_augmented_models(assert_follows):
    """Also of clients that have not taken part yet."""
    federation = assert_follows(
        make(0.4), gong(0.4, 1.0), rounds=3, sampling={"fraction": 0.5}, batch_size=2
    )
    states = [federation.engine.site.states.get(k) for k in range(4)]
    untouched = vector(initial(5, 3).state_dict())
    models = [
        untouched if state is None else vector(state["model"]) - vector(state["gradient"]) / 0.4
        for state in states
    ]
    found = vector(federation.server["params"])
    np.testing.assert_allclose(found, np.mean(models, axis=0), rtol=0, atol=1e-9)


@pytest.mark.slow  # `test_scaffold.py` has a fast one
def test_it_converges_to_the_optimum(final_gradient):
    assert final_gradient(make(1.0)) < 1e-6
