"""FedDyn against its equations, and what it is for."""

import numpy as np
import pytest
import torch

from flfast.algorithms.feddyn import feddyn
from flfast.plan import Batching


def acar(alpha):
    """Algorithm 1 of Acar et al. 2021, with local gradient descent as the solver."""

    def equations(reference, w, cohorts):
        gradients, h = np.zeros((reference.num_clients, len(w))), np.zeros_like(w)
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                models = []
                for k in cohort:
                    own, start = gradients[k].copy(), w
                    regulariser = lambda x, own=own, start=start: alpha * (x - start) - own
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


def test_it_arrives_where_the_mean_of_the_clients_objectives_is_stationary(
    make_data, make_federation
):
    """FedAvg with several local steps does not; see the same test of SCAFFOLD."""
    from references import Reference, initial, vector

    data = make_data([4, 9, 6])
    federation = make_federation(
        data,
        initial(5, 3),
        algorithm=feddyn(alpha=0.5),
        rounds=150,
        eval_every=150,
        lr=0.5,
        local_epochs=20,
        batching=Batching(-1),
        optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr),
        trainer={"precision": "64-true"},
    )
    federation.run()
    reference = Reference(data, -1, 1, 0.1)
    w = vector(federation.weights())
    gradients = [reference.gradient(w, reference.steps(k, 1)[0]) for k in range(3)]
    assert abs(np.mean(gradients, axis=0)).max() < 1e-3
    assert max(abs(g).max() for g in gradients) > 1e-2, "no client is at its own optimum"
