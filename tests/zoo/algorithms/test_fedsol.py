"""FedSOL against its equations and the authors' code, and its limit."""

from functools import partial

import numpy as np
import pytest
from algorithms_by_name import federation_of, run, server_of
from engine_runs import mlp
from references import initial

from flfast.state.weights import read_weights
from flfast.zoo.algorithms.fedsol import fedsol


def proximal_gradient(reference, w, server, step):
    """Gradient [P] of KL(softmax(z(server) / 3), softmax(z(w) / 3))."""
    inputs, targets = step
    num = reference.data.num_classes

    def probabilities(v):
        logits = (inputs @ v[:-num].reshape(num, -1).T + v[-num:]) / 3
        exps = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exps / exps.sum(axis=1, keepdims=True)

    error = (probabilities(w) - probabilities(server)) / 3
    return np.concatenate([(error.T @ inputs).ravel(), error.sum(axis=0)]) / len(targets)


def lee(rho):
    def gradient(reference, server, w, step):
        p = proximal_gradient(reference, w, server, step)
        num, length = reference.data.num_classes, np.linalg.norm(p)
        far = np.abs(w - server)
        weight, bias = far[:-num].reshape(num, -1), far[-num:]
        scaled = [
            part / np.maximum(np.linalg.norm(part, axis=0), 1e-12) for part in (weight, bias)
        ]
        factors = np.concatenate([part.ravel() for part in scaled])
        e = rho * factors * p / length if length > 0 else 0
        return reference.gradient(w + e, step)

    def equations(reference, w, cohorts):
        for round_idx, cohort in enumerate(cohorts, start=1):
            own = partial(gradient, reference, w)
            done = {k: reference.sgd(k, round_idx, w, gradient=own) for k in cohort}
            w = reference.mean(done) if done else w
            yield w

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 2])
def test_trajectories_follow_the_authors_code(assert_follows, batch_size, sampling):
    weights = read_weights(initial(5, 3))
    assert_follows(
        fedsol(rho=2.0, body=False, weighting="samples", initial=weights),
        lee(rho=2.0),
        batch_size=batch_size,
        sampling=sampling,
        lr=0.3,
    )


def test_by_default_the_step_moves_the_last_layer_alone(make_data, make_federation):
    """Its gradient and its length are those of this layer, so the body's step is another one."""
    found = []
    for body in (False, True):
        options = {"algorithm": {"body": body}, "sizes": (6,), "local_epochs": 3, "lr": 0.3}
        federation = federation_of(make_data, make_federation, "fedsol", mlp().double(), **options)
        found.append(server_of(run(federation)))
    assert (found[0]["0.weight"] - found[1]["0.weight"]).abs().max() > 1e-4
