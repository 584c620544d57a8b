"""FedDyn against its equations, and what it is for."""

from functools import partial

import numpy as np
import pytest

from flfast.algorithms.feddyn import feddyn


def dynamic(alpha, gradient, start, w):
    return alpha * (w - start) - gradient


def acar(alpha):
    """Algorithm 1 of Acar et al. 2021, with local gradient descent as the solver."""

    def equations(reference, w, cohorts):
        gradients, h = np.zeros((reference.num_clients, len(w))), np.zeros_like(w)
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                models = []
                for k in cohort:
                    regulariser = partial(dynamic, alpha, gradients[k].copy(), w)
                    models.append(reference.sgd(k, round_idx, w, change=regulariser))
                    gradients[k] -= alpha * (models[-1] - w)
                h = h - alpha / reference.num_clients * sum(model - w for model in models)
                w = sum(models) / len(models) - h / alpha
            yield w

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 2])
def test_trajectories_are_the_papers(follow, batch_size, sampling):
    follow(feddyn(alpha=0.5), acar(0.5), batch_size=batch_size, sampling=sampling)


def test_without_a_regulariser_clients_are_fedavgs_and_the_server_adds_up_updates(follow):
    """alpha -> 0: gradients and proximal term vanish, h / alpha does not."""

    def equations(reference, w, cohorts):
        behind = np.zeros_like(w)  # -h / alpha
        for round_idx, cohort in enumerate(cohorts, start=1):
            mean = np.mean([reference.sgd(k, round_idx, w) for k in cohort], axis=0)
            behind = behind + mean - w
            w = mean + behind
            yield w

    follow(feddyn(alpha=1e-9), equations, tol=1e-6)


def test_it_arrives_at_the_optimum(arrive):
    assert arrive(feddyn(alpha=1.0)) < 1e-6
