"""FedAMP against its equations in NumPy, and its limit."""

import numpy as np
import pytest
from algorithms_by_name import (
    assert_leaves_close,
    assert_rounds_follow,
    federation_of,
    personal_of,
    personal_vectors,
    run,
)
from engine_runs import mlp
from references import initial

from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS = (3, 8, 1, 6, 7), 0.3, 2, 5
LAM, ALPHA, SIGMA = 0.8, 0.4, 0.9


def huang(reference, start, cohorts):
    """Models [K, P] of all clients after every round."""
    models = np.stack([start[0]] * len(SIZES))
    for round_idx, cohort in enumerate(cohorts, start=1):
        trained = models.copy()
        for k in cohort:
            u, own = np.zeros_like(models[k]), 1.0
            for j in cohort:
                if j != k:
                    far = ((models[k] - models[j]) ** 2).sum()
                    attraction = ALPHA * np.exp(-far / SIGMA) / SIGMA
                    u, own = u + attraction * models[j], own - attraction
            u = u + own * models[k]
            pull = lambda v, u=u: LAM / ALPHA * (v - u)  # noqa: E731
            trained[k] = reference.sgd(k, round_idx, models[k], change=pull)
        models = trained
        yield models


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.8, "dropout": 0.2}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 3])
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, sampling):
    federation = federation_of(
        *(make_data, make_federation, "fedamp", initial(5, 3)),
        sizes=SIZES,
        rounds=ROUNDS,
        lr=LR,
        local_epochs=EPOCHS,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm={"lam": LAM, "alpha": ALPHA, "sigma": SIGMA},
    )
    assert_rounds_follow(federation, personal_vectors, huang)


def test_with_lam_zero_it_is_local_training(make_data, make_federation):
    def solve(name, **algorithm):
        options = {"sizes": (7, 2, 5), "rounds": 2, "algorithm": algorithm}
        return run(federation_of(make_data, make_federation, name, mlp(), **options))

    local = solve("local")
    found = solve("fedamp", lam=0.0)
    for k in range(3):
        assert_leaves_close(personal_of(found, k), personal_of(local, k))
