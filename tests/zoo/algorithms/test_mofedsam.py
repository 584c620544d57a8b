"""MoFedSAM against its equations."""

import numpy as np
import pytest
from references import uphill

from flfast.zoo.algorithms.mofedsam import mofedsam

SGD = {"momentum": 0.0, "nesterov": False, "local_optimizer_state": "reset"}


def make(**options):
    return mofedsam(**{**SGD, **options})


def qu(rho, alpha, server_lr):
    """FedCM with the gradient uphill; K is the mean number of steps of the cohort."""

    def equations(reference, w, cohorts):
        delta = np.zeros_like(w)
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                moves = []
                for k in cohort:
                    w_k = w.copy()
                    for step in reference.steps(k, round_idx):
                        u = uphill(reference, w_k, step, rho)
                        w_k = w_k - reference.lr * (alpha * u + (1 - alpha) * delta)
                    moves.append(w_k - w)
                num = np.mean([len(reference.steps(k, round_idx)) for k in cohort])
                delta = -np.mean(moves, axis=0) / (reference.lr * num)
                w = w + server_lr * np.mean(moves, axis=0)
            yield w

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "server_lr"), [(-1, 1.0), (2, 0.7)])
def test_trajectories_follow_the_paper(assert_follows, batch_size, server_lr, sampling):
    options = {"rho": 0.5, "alpha": 0.3, "server_lr": server_lr}
    assert_follows(make(**options), qu(**options), batch_size=batch_size, sampling=sampling)


def test_optimizers_other_than_sgd_are_refused_by_its_own_name():
    with pytest.raises(ValueError, match=r"algorithm=mofedsam needs .*optimizer=sgd"):
        make(rho=0.5, alpha=0.3, server_lr=1.0, momentum=None)
