"""FML against its equations, its limits, and both engines."""

import numpy as np
import pytest
from algorithms_by_name import (
    personal_of,
)
from references import vector

from flfast.zoo.algorithms.fml import fml


def probabilities(w, x):
    z = x @ w[:-3].reshape(3, -1).T + w[-3:]
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def mutual_gradient(w, teacher, step, share):
    """Gradient [P] of share * CE + (1 - share) * KL(teacher, own) of softmax regression."""
    x, y = step
    p, q = probabilities(w, x), probabilities(teacher, x)
    d = (share * (p - np.eye(3)[y]) + (1 - share) * (p - q)) / len(y)
    return np.concatenate([(d.T @ x).ravel(), d.sum(axis=0)])


def shen(alpha, beta, *, weighting, personal):
    """FML of Shen et al. 2020 on the clients of `Reference`; writes personal models by client."""

    def equations(reference, w, cohorts):
        for round_idx, cohort in enumerate(cohorts, start=1):
            memes = []
            for k in cohort:
                w_k, v_k = w, personal.get(k, w)
                for step in reference.steps(k, round_idx):
                    of_w = mutual_gradient(w_k, v_k, step, beta)
                    of_v = mutual_gradient(v_k, w_k, step, alpha)
                    w_k, v_k = w_k - reference.lr * of_w, v_k - reference.lr * of_v
                memes.append(w_k)
                personal[k] = v_k
            if cohort:
                sizes = [reference.size(k) if weighting == "samples" else 1 for k in cohort]
                w = np.average(memes, axis=0, weights=sizes)
            yield w

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(
    ("batch_size", "alpha", "beta", "weighting"),
    [(-1, 0.5, 0.5, "uniform"), (2, 0.8, 0.3, "samples")],
)
def test_trajectories_follow_the_paper(
    assert_follows, batch_size, alpha, beta, weighting, sampling
):
    personal = {}
    federation = assert_follows(
        fml(alpha=alpha, beta=beta, weighting=weighting, common=None, initial={}, seed=0),
        shen(alpha, beta, weighting=weighting, personal=personal),
        batch_size=batch_size,
        sampling=sampling,
        lr=0.3,
    )
    assert personal
    for k, expected in personal.items():
        found = vector(personal_of(federation, k))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
