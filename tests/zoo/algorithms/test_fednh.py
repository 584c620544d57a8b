"""FedNH against Algorithm 1 of the paper, in plain torch and double precision."""

from functools import partial

import pytest
import torch
from algorithms_by_name import (
    algorithm_of,
    assert_rounds_follow,
    federation_of,
    run,
    server_of,
)
from engine_runs import mlp, net
from torch import nn
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.zoo.algorithms.fednh import orthogonal

SIZES, LR, EPOCHS, ROUNDS, SCALE, RHO = (7, 1, 5), 0.2, 2, 4, 5.0, 0.6
BODY = ("0.weight", "0.bias")


def directions(w, x):
    z = torch.tanh(x @ w["0.weight"].T + w["0.bias"])
    return z / z.norm(dim=1, keepdim=True)


def dai(reference, w, cohorts):
    """FedNH of Dai et al. 2023: the server's parameters after every round."""
    for round_idx, cohort in enumerate(cohorts, start=1):
        bodies, sums, counts = [], torch.zeros(3, 8).double(), torch.zeros(3).double()
        prototypes = w["2.weight"]
        for k in cohort:
            w_k = {name: w[name] for name in BODY}
            for step in reference.steps(k, round_idx):
                x, y = map(torch.as_tensor, step)
                w_k = {name: p.detach().requires_grad_() for name, p in w_k.items()}
                loss = F.cross_entropy(SCALE * directions(w_k, x) @ prototypes.T, y)
                grads = torch.autograd.grad(loss, [*w_k.values()])
                w_k = {n: (w_k[n] - LR * g).detach() for n, g in zip(w_k, grads, strict=True)}
            bodies.append(w_k)
            at = reference.data.train_clients.indices_of(k)
            x = reference.data.examples.inputs[at].double()
            y = reference.data.examples.targets[at]
            for label in y.unique().tolist():
                mean = directions(w_k, x[y == label]).mean(0)
                sums[label] += (y == label).sum() * mean / mean.norm()
                counts[label] += (y == label).sum()
        new = prototypes.clone()
        for label in counts.nonzero().flatten().tolist():
            mean = sums[label] / counts[label]
            moved = RHO * prototypes[label] + (1 - RHO) * mean / mean.norm()
            new[label] = moved / moved.norm()
        if bodies:
            mean = {n: torch.stack([body[n] for body in bodies]).mean(0) for n in BODY}
            w = {**w, **mean, "2.weight": new}
        yield w


@pytest.fixture
def federation(make_data, make_federation):
    return partial(
        federation_of,
        *(make_data, make_federation, "fednh", mlp().double()),
        sizes=SIZES,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
        algorithm={"scale": SCALE, "rho": RHO},
    )


@pytest.mark.parametrize(
    ("batch_size", "sampling", "engine"),
    [(-1, {}, FusedTraining), (3, {"fraction": 0.4}, EagerTraining)],
)
def test_rounds_follow_the_paper(federation, batch_size, sampling, engine):
    """With one client of a cohort, some classes have no examples."""
    found = federation(batching=Batching(batch_size), sampling=sampling)
    expected = assert_rounds_follow(found, server_of, dai, engine=engine)
    first = torch.eye(3).double()
    assert not torch.allclose(expected[-1]["2.weight"] @ expected[-1]["2.weight"].T, first)
    assert not expected[-1]["2.bias"].any()


def test_the_server_predicts_the_nearest_prototype(federation):
    found = run(federation())
    w = server_of(found)
    x = found.data.examples.inputs.double()
    outputs = torch.tanh(x @ w["0.weight"].T + w["0.bias"]) @ w["2.weight"].T + w["2.bias"]
    assert torch.equal(outputs.argmax(1), (directions(w, x) @ w["2.weight"].T).argmax(1))
    assert w["2.weight"].norm(dim=1).tolist() == pytest.approx([1, 1, 1])


@pytest.mark.parametrize(("shape", "is_orthogonal"), [((3, 8), True), ((4, 4), True), ((9, 2), 0)])
def test_prototypes_start_with_length_one_and_orthogonal(shape, is_orthogonal):
    found = orthogonal(torch.zeros(shape).double(), 0)
    products = found @ found.T
    torch.testing.assert_close(products.diagonal(), torch.ones(shape[0]).double())
    near = torch.allclose(products, torch.eye(shape[0]).double(), atol=1e-6)
    assert near == is_orthogonal
    assert torch.equal(found, orthogonal(torch.zeros(shape).double(), 0))
    assert not torch.equal(found, orthogonal(torch.zeros(shape).double(), 1))


def test_a_head_that_is_not_one_linear_layer_is_refused():
    model = net(lambda: nn.Linear(5, 4), lambda: nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"algorithm\.head=.* if it is a linear one"):
        algorithm_of("fednh", model, head=["0"])
