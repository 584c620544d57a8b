"""FedDyn against its equations, and its convergence to the global optimum."""

import numpy as np
import pytest
from references import dynamic_regulariser

from flfast.zoo.algorithms.feddyn import feddyn


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 2])
def test_trajectories_follow_the_paper(assert_follows, batch_size, sampling):
    assert_follows(
        feddyn(alpha=0.5), dynamic_regulariser(0.5), batch_size=batch_size, sampling=sampling
    )


def test_for_small_alpha_the_server_adds_the_sum_of_all_updates(assert_follows):
    """As alpha -> 0, local training becomes FedAvg's, but h / alpha does not vanish."""

    def equations(reference, w, cohorts):
        total = np.zeros_like(w)  # -h / alpha
        for round_idx, cohort in enumerate(cohorts, start=1):
            mean = np.mean([reference.sgd(k, round_idx, w) for k in cohort], axis=0)
            total = total + mean - w
            w = mean + total
            yield w

    assert_follows(feddyn(alpha=1e-9), equations, tol=1e-6)


@pytest.mark.slow  # `test_scaffold.py` has a fast one
def test_it_converges_to_the_optimum(final_gradient):
    assert final_gradient(feddyn(alpha=1.0)) < 1e-6
