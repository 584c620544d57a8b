"""FD against Algorithm 1 of the paper, in plain torch and double precision."""

import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, personal_of, run
from engine_runs import mlp
from references import Reference

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS = (7, 2, 1, 9), 0.3, 2, 4


def probabilities(w, x):
    z = torch.tanh(x @ w["0.weight"].T + w["0.bias"]) @ w["2.weight"].T + w["2.bias"]
    return z.softmax(dim=1)


def cross_entropy(p, q):
    """Of the predictions p [C] with a teacher q [C]."""
    return -sum(q[c] * p[c].log() for c in range(3))


def jeong(initial, reference, cohorts, *, gamma):
    """FD of Jeong et al. 2018: every client's weights after all rounds."""
    weights, received = {}, {}
    for round_idx, cohort in enumerate(cohorts, start=1):
        uploaded = {}
        for k in cohort:
            w = weights.get(k, initial)
            outputs = {label: [] for label in range(3)}
            for step in reference.steps(k, round_idx):
                x, y = map(torch.as_tensor, step)
                w = {n: p.detach().requires_grad_() for n, p in w.items()}
                loss, batch = 0.0, probabilities(w, x)
                for p, label in zip(batch, y.tolist(), strict=True):
                    outputs[label].append(p.detach())
                    loss = loss - p[label].log()
                    theirs = [own[label] for j, own in received.items() if j != k and label in own]
                    if theirs:
                        loss = loss + gamma * cross_entropy(p, sum(theirs) / len(theirs))
                grads = torch.autograd.grad(loss / len(y), list(w.values()))
                w = {n: w[n].detach() - LR * g for n, g in zip(w, grads, strict=True)}
            weights[k] = w
            uploaded[k] = {label: sum(ps) / len(ps) for label, ps in outputs.items() if ps}
        received = uploaded or received
    return weights, received


@pytest.fixture
def federation(make_data, make_federation):
    def federation(name="fd", **options):
        return federation_of(
            *(make_data, make_federation, name, mlp().double()),
            sizes=SIZES,
            rounds=ROUNDS,
            local_epochs=EPOCHS,
            lr=LR,
            **options,
        )

    return federation


@pytest.mark.parametrize(
    ("batch_size", "gamma", "engine", "stack", "sampling"),
    [
        (-1, 1.0, EagerTraining, 1, {}),
        (3, 0.5, EagerTraining, 1, {"fraction": 0.7, "dropout": 0.3}),
        (3, 2.0, FusedTraining, 4, {"fraction": 0.7, "dropout": 0.3}),
    ],
)
def test_rounds_follow_the_paper(federation, batch_size, gamma, engine, stack, sampling):
    found = federation(
        batching=Batching(batch_size), sampling=sampling, algorithm={"gamma": gamma}
    )
    reference = Reference(found.data, batch_size, EPOCHS, LR)
    cohorts = [found.cohort(r).clients.tolist() for r in range(1, ROUNDS + 1)]
    weights, sent = jeong(found.initial["params"], reference, cohorts, gamma=gamma)
    run(found, engine, stack=stack)
    assert weights
    for k, expected in weights.items():
        assert_leaves_close(personal_of(found, k), expected, tol=1e-9)
    numbers = [sum(label in own for own in sent.values()) for label in range(3)]
    assert found.server["clients"].tolist() == numbers


def test_without_gamma_it_is_local_training(federation):
    found = federation(algorithm={"gamma": 0.0})
    run(found)
    local = run(federation("local"))
    for k in range(len(SIZES)):
        assert_leaves_close(personal_of(found, k), personal_of(local, k), tol=1e-9)


def test_outputs_are_all_that_is_sent(federation):
    row = run(federation()).history[-1]
    assert row["comm/up_bytes"] == len(SIZES) * (3 * 3 + 3) * 8
    assert row["comm/down_bytes"] == len(SIZES) * (3 * 3 + 3 + 1) * 8
