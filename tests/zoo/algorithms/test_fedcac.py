"""FedCAC against its equations in NumPy, and its limit."""

import numpy as np
import pytest
from algorithms_by_name import (
    assert_leaves_close,
    assert_rounds_follow,
    federation_of,
    personal_vectors,
    run,
    server_of,
    server_vector,
)
from engine_runs import mlp
from references import initial

from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS, TAU, BETA = (3, 8, 2, 6, 7), 0.3, 2, 6, 0.4, 4.0
TENSORS = (slice(0, 15), slice(15, 18))  # weight and bias


def mask_of(before, after):
    """The largest TAU of |change * value| in every tensor."""
    mask = np.zeros(len(after), dtype=bool)
    for part in TENSORS:
        sensitivity = abs((after - before)[part] * after[part])
        num = int(TAU * len(sensitivity))
        mask[part][np.argsort(-sensitivity)[:num]] = True
    return mask


def customised(models, masks, t):
    """Means of the models of the clients that collaborate, by client; t rounds are over."""
    known = sorted(models)

    def overlap(i, j):
        return 1 - (masks[i] != masks[j]).sum() / (2 * masks[i].sum())

    pairs = [overlap(i, j) for i in known for j in known if i != j]
    threshold = np.mean(pairs) + t / BETA * (max(pairs) - np.mean(pairs))
    return {
        i: np.mean([models[j] for j in known if j == i or overlap(i, j) >= threshold], axis=0)
        for i in known
    }


def wu(reference, start, cohorts):
    """FedCAC of Wu et al. 2023: (w, personal models) after every round."""
    w, _ = start
    models, masks, personal = {}, {}, dict.fromkeys(range(len(SIZES)), w)
    for t, cohort in enumerate(cohorts, start=1):
        for k in cohort:
            models[k] = reference.sgd(k, t, personal[k])
            masks[k] = mask_of(personal[k], models[k])
        w = np.average(
            [models[k] for k in cohort], axis=0, weights=[reference.size(k) for k in cohort]
        )
        own = customised(models, masks, t)
        personal = {k: np.where(masks[k], own[k], w) if k in own else w for k in personal}
        yield w, np.stack(list(personal.values()))


def outcome(federation):
    """(server's model, personal models)."""
    return server_vector(federation), personal_vectors(federation)


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.1}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 3])
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, sampling):
    federation = federation_of(
        *(make_data, make_federation, "fedcac", initial(5, 3)),
        sizes=SIZES,
        rounds=ROUNDS,
        lr=LR,
        local_epochs=EPOCHS,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm={"tau": TAU, "beta": BETA},
    )
    expected = assert_rounds_follow(federation, outcome, wu)
    assert abs(expected[-1][1] - expected[-1][0]).max() > 0.01


def test_without_critical_parameters_it_is_fedavg(make_data, make_federation):
    def solve(name, **algorithm):
        options = {"sizes": (7, 2, 5), "rounds": 3, "algorithm": algorithm}
        return run(federation_of(make_data, make_federation, name, mlp().double(), **options))

    fedavg = solve("fedavg")
    found = solve("fedcac", tau=0.0)
    assert_leaves_close(server_of(found), server_of(fedavg))
    personal = found.engine.personal_weights(found.server, 1)
    assert_leaves_close(personal["params"], server_of(fedavg))
