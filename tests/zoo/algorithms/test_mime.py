"""Mime and MimeLite against their equations, in plain torch and double precision."""

import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, run, server_of
from engine_runs import mlp
from torch.func import functional_call
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

LR, ROUNDS, STEPS, SIZES = 0.1, 3, 3, (6, 3, 5)


def grad(model, weights, x, y):
    own = {name: w.clone().requires_grad_() for name, w in weights.items()}
    loss = F.cross_entropy(functional_call(model, own, (x,)), y)
    return dict(zip(own, torch.autograd.grad(loss, list(own.values())), strict=True))


def combine(*terms):
    return {n: sum(factor * tree[n] for factor, tree in terms) for n in terms[0][1]}


def expected(name, model, data, weights, beta):
    """Server weights after `ROUNDS` of full batches."""
    momentum = {n: torch.zeros_like(w) for n, w in weights.items()}
    batches = []
    for client in range(len(SIZES)):
        indices = data.train_clients.indices_of(client)
        batches.append((data.examples.inputs[indices].double(), data.examples.targets[indices]))
    for _ in range(ROUNDS):
        full = combine(*((1 / len(batches), grad(model, weights, *batch)) for batch in batches))
        ends = []
        for batch in batches:
            y = weights
            for _ in range(STEPS):
                g = grad(model, y, *batch)
                if name == "mime":
                    g = combine((1, g), (-1, grad(model, weights, *batch)), (1, full))
                y = combine((1, y), (-LR * (1 - beta), g), (-LR * beta, momentum))
            ends.append(y)
        weights = combine(*((1 / len(ends), end) for end in ends))
        momentum = combine((1 - beta, full), (beta, momentum))
    return weights


@pytest.mark.parametrize("name", ["mime", "mimelite"])
@pytest.mark.parametrize(("engine", "stack"), [(EagerTraining, 1), (FusedTraining, 3)])
def test_rounds_follow_the_paper(name, engine, stack, make_data, make_federation):
    model = mlp().double()
    federation = federation_of(
        *(make_data, make_federation, name, model),
        sizes=SIZES,
        lr=LR,
        rounds=ROUNDS,
        local_epochs=STEPS,
        algorithm={"beta": 0.8},
        batching=Batching(16),
    )
    weights = expected(name, model, federation.data, federation.initial["params"], 0.8)
    run(federation, engine, stack=stack)
    assert_leaves_close(server_of(federation), weights, tol=1e-9)


def test_without_momentum_one_full_step_of_mime_is_gradient_descent(make_data, make_federation):
    options = {"sizes": (5, 5), "local_epochs": 1, "rounds": 2, "lr": LR}
    mime, fedavg = (
        run(federation_of(make_data, make_federation, name, mlp().double(), **options, **more))
        for name, more in (("mime", {"algorithm": {"beta": 0.0}}), ("fedavg", {}))
    )
    assert_leaves_close(server_of(mime), server_of(fedavg), tol=1e-9)


def test_both_calls_are_counted(make_data, make_federation):
    federation = run(federation_of(make_data, make_federation, "mime", mlp().double()))
    model = sum(leaf.nbytes for leaf in federation.initial["params"].values())
    row = federation.history[-1]
    assert row["comm/up_bytes"] == 3 * 2 * model
    assert row["comm/down_bytes"] == 3 * (1 + 3) * model  # weights, then all three
