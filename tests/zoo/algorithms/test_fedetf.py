"""FedETF against its equations in plain torch, and predictions."""

from functools import partial

import pytest
import torch
from algorithms_by_name import assert_rounds_follow, federation_of, run, server_of, states_of
from engine_runs import mlp
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS, CYCLES = (7, 1, 5), 0.2, 2, 3, 2
PROJECTION = ("2.weight", "2.bias")
OPTIONS = {"beta": 3.0, "cycles": CYCLES, "cycle_epochs": 1, "vectors_lr": 2.0}
V = (3 / 2) ** 0.5 * (torch.eye(3).double() - torch.ones(3, 3).double() / 3)


def logits(w, x, vectors):
    z = torch.tanh(x @ w["0.weight"].T + w["0.bias"])
    p = z @ w["2.weight"].T + w["2.bias"]
    return w["beta"] * p / p.norm(dim=1, keepdim=True) @ vectors


def descend(loss, w, names, lr):
    """A step on loss(w) by some of its leaves."""
    w = {name: leaf.detach().requires_grad_(name in names) for name, leaf in w.items()}
    grads = torch.autograd.grad(loss(w), [w[name] for name in names])
    new = {name: w[name] - lr * grad for name, grad in zip(names, grads, strict=True)}
    return {name: leaf.detach() for name, leaf in {**w, **new}.items()}


def balanced(w, x, y, *, counts):
    weighted = counts * logits(w, x, V).exp()
    return -(weighted[range(len(y)), y] / weighted.sum(1)).log().mean()


def plain(w, x, y):
    return F.cross_entropy(logits(w, x, w["vectors"]), y)


def epoch(loss, w, steps, names, lr):
    for x, y in steps:
        w = descend(partial(loss, x=x, y=y), w, names, lr)
    return w


def li(reference, start, cohorts):
    """FedETF of Li et al. 2023: (shared model, personal models by client) of every round."""
    w, personal = start[0], {}
    for round_idx, cohort in enumerate(cohorts, start=1):
        done = {}
        for k in cohort:
            counts = torch.tensor([reference.labels(k).count(c) for c in range(3)]).double()
            stages, w_k = iter(epochs(reference, k, round_idx)), w
            for _ in range(EPOCHS):
                w_k = epoch(partial(balanced, counts=counts), w_k, next(stages), [*w_k], LR)
            done[k], own = w_k, {**w_k, "vectors": V}
            for names, lr in [(["vectors"], 2 * LR), (PROJECTION, LR)] * CYCLES:
                own = epoch(plain, own, next(stages), names, lr)
            personal[k] = own
        w = reference.mean(done) if done else w
        yield w, dict(personal)


def epochs(reference, k, round_idx):
    """The steps of each epoch of all stages."""
    longer = type(reference)(*(reference.data, reference.batch_size, EPOCHS + 2 * CYCLES, LR))
    steps = [tuple(map(torch.as_tensor, step)) for step in longer.steps(k, round_idx)]
    per_epoch = len(steps) // longer.epochs
    return [steps[at : at + per_epoch] for at in range(0, len(steps), per_epoch)]


def outcome(federation):
    """(shared model, personal models by client)."""

    def named(params):
        renamed = {".scale": "beta", ".vectors": "vectors"}
        return {renamed.get(name, name): leaf for name, leaf in params.items()}

    shared = {**server_of(federation), "beta": federation.server["scale"]}
    return shared, states_of(federation, lambda state: named(state["params"]))


@pytest.mark.parametrize(
    ("batch_size", "sampling", "engine"),
    [(-1, {}, FusedTraining), (3, {"fraction": 0.7}, EagerTraining)],
)
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, sampling, engine):
    """Client 1 has one example, so that it lacks two classes."""
    federation = federation_of(
        *(make_data, make_federation, "fedetf", mlp().double()),
        sizes=SIZES,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm=OPTIONS,
    )
    assert_rounds_follow(federation, outcome, li, engine=engine)


def test_the_servers_model_and_personal_models_predict_with_the_simplex(
    make_data, make_federation
):
    """The largest output of the server's model is the class nearest to the features."""
    federation = federation_of(
        *(make_data, make_federation, "fedetf", mlp().double()),
        sizes=(12, 10, 11),
        split=(0.0, 0.4),
        rounds=2,
        algorithm=OPTIONS,
    )
    run(federation)
    found = federation.engine.evaluate(federation.server, federation.plans(2, []))["personal"]
    shared, personal = outcome(federation)
    for k in range(3):
        indices = federation.data.splits["test"].indices_of(k)
        x, y = federation.data.examples.inputs[indices], federation.data.examples.targets[indices]
        expected = F.cross_entropy(logits(personal[k], x.double(), personal[k]["vectors"]), y)
        assert found.values["loss"][k] == pytest.approx(expected.item(), rel=1e-5)
        z = torch.tanh(x.double() @ shared["0.weight"].T + shared["0.bias"])
        outputs = z @ shared["2.weight"].T + shared["2.bias"]
        assert torch.equal(outputs.argmax(1), logits(shared, x.double(), V).argmax(1))
