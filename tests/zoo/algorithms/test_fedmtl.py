"""FedMTL against its objective in NumPy, and its limit."""

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

SIZES, LR, EPOCHS, ROUNDS, LAM = (3, 8, 1, 6, 7), 0.3, 2, 5, 0.4


def smith(reference, start, cohorts):
    """Local training with the gradient of LAM * tr(W Omega W^T): models [N, P] of every round."""
    models = np.stack([start[0]] * len(SIZES))
    for round_idx, cohort in enumerate(cohorts, start=1):
        num, trained = len(cohort), models.copy()
        omega = np.eye(num) - np.ones((num, num)) / num
        for place, k in enumerate(cohort):

            def pull(v, place=place, omega=omega, given=models[cohort]):
                columns = given.copy()
                columns[place] = v
                return 2 * LAM * omega[place] @ columns

            trained[k] = reference.sgd(k, round_idx, models[k], change=pull)
        models = trained
        yield models


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.8, "dropout": 0.4}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 3])
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, sampling):
    federation = federation_of(
        *(make_data, make_federation, "fedmtl", initial(5, 3)),
        sizes=SIZES,
        rounds=ROUNDS,
        lr=LR,
        local_epochs=EPOCHS,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm={"lam": LAM},
    )
    assert_rounds_follow(federation, personal_vectors, smith)


def test_with_lam_zero_it_is_local_training(make_data, make_federation):
    def solve(name, **algorithm):
        options = {"sizes": (7, 2, 5), "rounds": 2, "algorithm": algorithm}
        return run(federation_of(make_data, make_federation, name, mlp(), **options))

    local = solve("local")
    found = solve("fedmtl", lam=0.0)
    for k in range(3):
        assert_leaves_close(personal_of(found, k), personal_of(local, k))
