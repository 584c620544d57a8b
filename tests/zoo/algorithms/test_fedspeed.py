"""FedSpeed against its equations, its limit, and its convergence to the global optimum."""

import numpy as np
import pytest
from algorithms_by_name import assert_leaves_close, federation_of, run, server_of
from engine_runs import mlp

from flfast.state.plan import Batching
from flfast.zoo.algorithms.fedspeed import fedspeed


def sun(lam, rho, alpha):
    """Algorithm 1 of Sun et al. 2023 on the clients of `Reference`."""

    def equations(reference, w, cohorts):
        corrections = np.zeros((reference.num_clients, len(w)))
        for round_idx, cohort in enumerate(cohorts, start=1):
            sent = []
            for k in cohort:
                w_k = w.copy()
                for step in reference.steps(k, round_idx):
                    g = reference.gradient(w_k, step)
                    uphill = reference.gradient(w_k + rho * g / np.linalg.norm(g), step)
                    quasi = (1 - alpha) * g + alpha * uphill
                    w_k = w_k - reference.lr * (quasi - corrections[k] + (w_k - w) / lam)
                corrections[k] -= (w_k - w) / lam
                sent.append(w_k - lam * corrections[k])
            if sent:
                w = np.mean(sent, axis=0)
            yield w

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "alpha"), [(-1, 0.7), (2, 0.7), (2, 1.0)])
def test_trajectories_follow_the_paper(assert_follows, batch_size, alpha, sampling):
    options = {"lam": 4.0, "rho": 0.5, "alpha": alpha}
    assert_follows(fedspeed(**options), sun(**options), batch_size=batch_size, sampling=sampling)


@pytest.mark.parametrize("option", ["rho", "alpha"])
def test_without_the_second_gradient_it_is_feddyn(option, make_data, make_federation):
    def solve(name, **algorithm):
        federation = federation_of(
            *(make_data, make_federation, name, mlp()),
            sizes=(7, 2, 4),
            rounds=3,
            local_epochs=2,
            batching=Batching(3),
            algorithm=algorithm,
        )
        return server_of(run(federation))

    feddyn = solve("feddyn", alpha=0.25)
    found = solve("fedspeed", lam=4.0, **{option: 0.0})
    assert_leaves_close(found, feddyn, tol=1e-9)


@pytest.mark.slow
def test_it_converges_to_the_optimum(final_gradient):
    assert final_gradient(fedspeed(lam=1.0, rho=1e-9, alpha=1.0)) < 1e-6
