"""FedGH against Algorithm 1 of the paper, in plain torch and double precision."""

import pytest
import torch
from algorithms_by_name import (
    algorithm_of,
    assert_leaves_close,
    federation_of,
    personal_of,
    run,
    server_of,
)
from engine_runs import mlp, net
from references import Reference
from torch import nn
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS = (7, 2, 5, 9), 0.3, 2, 4
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")


def features(w, x):
    return torch.tanh(x @ w["0.weight"].T + w["0.bias"])


def descend(w, loss, lr):
    grads = torch.autograd.grad(loss, list(w.values()))
    return {n: (w[n] - lr * g).detach().requires_grad_() for n, g in zip(w, grads, strict=True)}


def yi(initial, reference, cohorts, *, server_lr):
    """FedGH of Yi et al. 2023: (server's head, bodies by client) after all rounds."""
    initial = {n: p.clone().requires_grad_() for n, p in initial.items()}
    head, bodies = {n: initial[n] for n in HEAD}, {}
    for round_idx, cohort in enumerate(cohorts, start=1):
        received = []
        for k in cohort:
            w = {**bodies.get(k, {n: initial[n] for n in BODY}), **head}
            for step in reference.steps(k, round_idx):
                x, y = map(torch.as_tensor, step)
                logits = features(w, x) @ w["2.weight"].T + w["2.bias"]
                w = descend(w, F.cross_entropy(logits, y), LR)
            bodies[k] = {n: w[n] for n in BODY}
            at = reference.data.train_clients.indices_of(k)
            examples = reference.data.examples
            x, y = examples.inputs[at].double(), examples.targets[at]
            z, labels = features(w, x).detach(), y.unique().tolist()
            received += [(z[y == label].mean(0), label) for label in labels]
        for z, label in received:
            logits = head["2.weight"] @ z + head["2.bias"]
            head = descend(head, -F.log_softmax(logits, dim=0)[label], server_lr)
    return head, bodies


@pytest.fixture
def federation(make_data, make_federation):
    def federation(**options):
        return federation_of(
            *(make_data, make_federation, "fedgh", mlp().double()),
            sizes=SIZES,
            rounds=ROUNDS,
            local_epochs=EPOCHS,
            lr=LR,
            **options,
        )

    return federation


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.5, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(
    ("batch_size", "server_lr", "engine"), [(-1, 0.01, FusedTraining), (3, 0.5, EagerTraining)]
)
def test_rounds_follow_the_paper(federation, batch_size, server_lr, engine, sampling):
    found = federation(
        batching=Batching(batch_size), sampling=sampling, algorithm={"server_lr": server_lr}
    )
    reference = Reference(found.data, batch_size, EPOCHS, LR)
    cohorts = [found.cohort(r).clients.tolist() for r in range(1, ROUNDS + 1)]
    start = found.initial["params"]
    head, bodies = yi(start, reference, cohorts, server_lr=server_lr)
    run(found, engine)
    assert_leaves_close({n: server_of(found)[n] for n in HEAD}, head, tol=1e-9)
    assert not torch.equal(head["2.weight"], start["2.weight"])
    assert bodies
    for k, body in bodies.items():
        assert_leaves_close(personal_of(found, k), {**body, **head}, tol=1e-9)


def test_without_a_server_rate_the_head_stays(federation):
    found = federation(algorithm={"server_lr": 0.0})
    assert_leaves_close(server_of(run(found)), found.initial["params"])


def test_class_means_are_all_that_is_sent(federation):
    row = run(federation()).history[-1]
    assert row["comm/up_bytes"] == len(SIZES) * (3 * 8 + 3) * 8
    assert row["comm/down_bytes"] == len(SIZES) * (3 * 8 + 3) * 8


@pytest.mark.parametrize("head", [["1", "2"], ["2.weight"], ["0"]])
def test_a_head_that_is_not_one_linear_layer_is_refused(head):
    model = net(lambda: nn.Conv1d(5, 4, 1), lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 3))
    with pytest.raises(
        ValueError, match=r"algorithm\.head=.*the last layer, .* if it is a linear one"
    ):
        algorithm_of("fedgh", model, head=head)
