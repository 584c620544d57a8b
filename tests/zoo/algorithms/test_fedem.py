"""FedEM against its equations, and the mixture that a client predicts."""

from functools import partial

import numpy as np
import pytest
import torch
from algorithms_by_name import (
    assert_rounds_follow,
    federation_of,
    run,
    states_of,
)
from references import initial, vector

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.zoo.algorithms.fedem import PI

SIZES, LR, EPOCHS, ROUNDS, NUM = (3, 8, 1, 6, 7), 0.3, 3, 4, 3


def outcome(federation):
    """(models [M, P], proportions [M] by client)."""
    params = federation.server["params"]
    prefixes = ["", *(f"{m}/" for m in range(1, NUM))]
    models = [vector({n: params[before + n] for n in ("weight", "bias")}) for before in prefixes]
    return np.stack(models), states_of(federation, lambda state: state["pi"].numpy())


def logits(w, x):
    return x @ w[:-3].reshape(3, -1).T + w[-3:]


def losses(w, x, y):
    z = logits(w, x)
    return np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]


def posterior(models, pi, x, y):
    """q [M, B] of equation 9."""
    q = pi[:, None] * np.exp(-np.stack([losses(w, x, y) for w in models]))
    return q / q.sum(0)


def gradient(w, step, q):
    """Of the mean over a step's examples of q times the loss."""
    x, y = step
    z = np.exp(logits(w, x))
    error = (z / z.sum(1, keepdims=True) - np.eye(3)[y]) * q[:, None] / len(y)
    return np.concatenate([(error.T @ x).ravel(), error.sum(0)])


def marfoq(reference, start, cohorts):
    """Algorithm 1 of Marfoq et al. 2021."""
    models, pis = start
    for round_idx, cohort in enumerate(cohorts, start=1):
        done = {}
        for k in cohort:
            pi, examples = pis.get(k, np.full(NUM, 1 / NUM)), reference.data.examples
            own = reference.data.train_clients.indices_of(k)
            x, y = examples.inputs[own].double().numpy(), examples.targets[own].numpy()
            trained = [w.copy() for w in models]
            for step in reference.steps(k, round_idx):
                q = posterior(models, pi, *step)
                trained = [w - LR * gradient(w, step, q[m]) for m, w in enumerate(trained)]
            done[k] = np.stack(trained)
            pis = {**pis, k: posterior(models, pi, x, y).mean(1)}
        models = reference.mean(done) if done else models
        yield models, pis


@pytest.fixture
def solve(make_data, make_federation):
    def solve(**options):
        return federation_of(
            *(make_data, make_federation, "fedem", initial(5, 3)),
            **{
                "sizes": SIZES,
                "rounds": ROUNDS,
                "lr": LR,
                "local_epochs": EPOCHS,
                "batching": Batching(2),
                **options,
            },
        )

    return solve


@pytest.mark.parametrize(("engine", "stack"), [(EagerTraining, 1), (FusedTraining, 3)])
@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
def test_rounds_follow_the_paper(solve, sampling, engine, stack):
    federation = solve(sampling=sampling)
    found = assert_rounds_follow(federation, outcome, marfoq, engine=engine, stack=stack)
    models, pis = found[-1]
    assert min(np.ptp(models, axis=0).max(), *(np.ptp(pi) for pi in pis.values())) > 1e-3


def test_a_client_predicts_the_mixture_of_the_models_probabilities(solve):
    federation = run(solve(rounds=2))
    models, pis = outcome(federation)
    weights = federation.engine.personal_weights(federation.server, 1)
    assert torch.equal(weights["params"][PI], torch.as_tensor(pis[1]))
    data = federation.data
    x, y = (part.numpy() for part in (data.examples.inputs, data.examples.targets))
    own = data.train_clients.indices_of(1)
    exps = [np.exp(logits(w, x[own].astype(float))) for w in models]
    mixed = sum(
        pi * found / found.sum(1, keepdims=True) for pi, found in zip(pis[1], exps, strict=True)
    )
    expected = -np.log(mixed[np.arange(len(own)), y[own]]).mean()
    assert personal_loss(federation, own) == pytest.approx(expected)


def personal_loss(federation, indices):
    """Loss of client 1's model over examples, from what the algorithm predicts."""
    algorithm, examples = federation.algorithm, federation.data.examples
    weights = federation.engine.personal_weights(federation.server, 1)["params"]
    task = partial(torch.func.functional_call, initial(5, 3))

    class Task:
        def logits(self, weights, batch):
            own = {name: weights[name] for name in ("weight", "bias")}
            return task(own, (batch.inputs.double(),))

    class Batch:
        inputs, targets = examples.inputs[indices], examples.targets[indices]

    found = algorithm.predict(Task(), weights, Batch())
    return float(torch.nn.functional.cross_entropy(found, Batch.targets))
