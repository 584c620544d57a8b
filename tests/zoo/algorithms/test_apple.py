"""APPLE against its equations in NumPy, and its limit."""

import numpy as np
import pytest
from algorithms_by_name import (
    assert_rounds_follow,
    federation_of,
    personal_vectors,
    run,
    states_of,
)
from references import initial

from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS = (3, 8, 2, 6), 0.3, 2, 6
MU, SHARE, P_LR = 0.7, 0.5, 0.4


def luo(reference, start, cohorts):
    """Algorithm 1 of Luo and Wu 2022: (personal models, relations) of all clients by round."""
    num, limit = len(SIZES), SHARE * ROUNDS
    cores, p = [start[0][0]] * num, np.full((num, num), 1 / num)
    for round_idx, cohort in enumerate(cohorts, start=1):
        done = round_idx - 1
        scheduled = 0.001 ** (done / limit) if done < limit else 0.0
        uploaded, p = list(cores), p.copy()
        for k in cohort:
            known = list(uploaded)
            for step in reference.steps(k, round_idx):
                grad = reference.gradient(sum(p[k, j] * known[j] for j in range(num)), step)
                pull = 2 * MU * scheduled * (p[k] - 1 / num)
                slope = np.array([grad @ core for core in known]) + pull
                known[k] = known[k] - reference.lr * p[k, k] * grad
                p[k] -= P_LR * reference.lr * slope
            cores[k] = known[k]
        yield np.stack([p[k] @ np.stack(cores) for k in range(num)]), p


def outcome(federation):
    """(personal models, relations) of all clients."""
    p = dict.fromkeys(range(len(SIZES)), np.full(4, 0.25))
    p |= states_of(federation, lambda state: state["p"].numpy())
    return personal_vectors(federation), np.stack([p[k] for k in range(len(SIZES))])


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.75}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 3])
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, sampling):
    options = {"mu": MU, "share": SHARE, "p_lr": P_LR, "horizon": ROUNDS}
    federation = federation_of(
        *(make_data, make_federation, "apple", initial(5, 3)),
        sizes=SIZES,
        rounds=ROUNDS,
        lr=LR,
        local_epochs=EPOCHS,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm=options,
    )
    expected = assert_rounds_follow(federation, outcome, luo, tol=1e-8)
    assert abs(expected[-1][1] - 0.25).max() > 0.01


def test_without_a_rate_the_relations_stay_equal(make_data, make_federation):
    federation = federation_of(
        *(make_data, make_federation, "apple", initial(5, 3)),
        sizes=SIZES,
        rounds=2,
        algorithm={"p_lr": 0.0},
    )
    models, relations = outcome(run(federation))
    assert np.array_equal(relations, np.full((4, 4), 0.25))
    np.testing.assert_allclose(models, np.stack([models[0]] * 4), rtol=1e-12, atol=1e-12)
