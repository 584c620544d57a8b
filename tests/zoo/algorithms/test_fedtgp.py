"""FedTGP against its equations, in plain torch and double precision."""

import pytest
import torch
from algorithms_by_name import federation_of, run
from engine_runs import mlp
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.state.randomness import torch_generator
from flfast.zoo.algorithms.fedtgp import margin

LR, ROUNDS, STEPS, SIZES, LAM = 0.1, 3, 2, (8, 6, 7), 0.7
OPTIONS = {"lam": LAM, "tau": 0.9, "hidden_dim": 5, "server_epochs": 4, "server_batch_size": 3}


def features(weights, x):
    return torch.tanh(x @ weights["0.weight"].T + weights["0.bias"])


def prototypes(trained):
    """P[j] = V relu(U e_j + u) + v."""
    first, second = (
        [trained[f".prototypes.{layer}.{kind}"] for kind in ("weight", "bias")] for layer in (0, 2)
    )
    return F.linear(torch.relu(F.linear(trained["embedding"], *first)), *second)


def server_trained(trained, found, round_idx):
    """The server's weights after its epochs on class means [(mean, class)] by client."""
    points = torch.stack([mean for client in found for mean, _ in client])
    labels = torch.tensor([c for client in found for _, c in client])
    q = {c: points[labels == c].mean(0) for c in labels.unique().tolist()}
    gaps = [min(float((q[c] - q[j]).norm()) for j in q if j != c) for c in q] if len(q) > 1 else []
    by = min([max(gaps, default=OPTIONS["tau"]), OPTIONS["tau"]])
    rng = torch_generator(0, "prototypes", round_idx)
    for _ in range(OPTIONS["server_epochs"]):
        for at in torch.randperm(len(labels), generator=rng).split(OPTIONS["server_batch_size"]):
            own = {name: leaf.clone().requires_grad_() for name, leaf in trained.items()}
            known, loss = prototypes(own), 0.0
            for i in at.tolist():
                far = torch.stack([(points[i] - known[j]).norm() for j in range(3)])
                logits = -far - by * F.one_hot(labels[i], 3)
                loss = loss + F.cross_entropy(logits.unsqueeze(0), labels[i : i + 1]) / len(at)
            grads = torch.autograd.grad(loss, list(own.values()))
            trained = {n: trained[n] - 0.01 * g for n, g in zip(own, grads, strict=True)}
    return trained


def expected(data, weights, trained):
    """What the server has trained, and every client's weights, after `ROUNDS`."""
    clients = []
    for client in range(len(SIZES)):
        indices = data.train_clients.indices_of(client)
        clients.append((data.examples.inputs[indices].double(), data.examples.targets[indices]))
    own, known = [weights] * len(clients), None
    for round_idx in range(1, ROUNDS + 1):
        found = []
        for k, (x, y) in enumerate(clients):
            for _ in range(STEPS):
                point = {n: w.clone().requires_grad_() for n, w in own[k].items()}
                z = features(point, x)
                loss = F.cross_entropy(z @ point["2.weight"].T + point["2.bias"], y)
                if known is not None:
                    loss = loss + LAM * (z - known[y]).square().mean()
                grads = torch.autograd.grad(loss, list(point.values()))
                own[k] = {n: own[k][n] - LR * g for n, g in zip(point, grads, strict=True)}
            z = features(own[k], x)
            found.append([(z[y == c].mean(0), c) for c in y.unique().tolist()])
        trained = server_trained(trained, found, round_idx)
        known = prototypes(trained)
    return trained, own


@pytest.mark.parametrize(("engine", "stack"), [(EagerTraining, 1), (FusedTraining, 3)])
def test_rounds_follow_the_authors_code(engine, stack, make_data, make_federation):
    federation = federation_of(
        *(make_data, make_federation, "fedtgp", mlp().double()),
        sizes=SIZES,
        lr=LR,
        rounds=ROUNDS,
        local_epochs=STEPS,
        algorithm=OPTIONS,
        batching=Batching(16),
    )
    weights, start = federation.initial["params"], federation.server["trained"]
    trained, own = expected(federation.data, weights, start)
    run(federation, engine, stack=stack)
    torch.testing.assert_close(federation.server["trained"], trained, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(federation.server["prototypes"], prototypes(trained))
    for k, final in enumerate(own):
        kept = federation.engine.site.states.get(k)["own"]["params"]
        torch.testing.assert_close(kept, final, rtol=1e-8, atol=1e-9)


def test_the_margin_is_the_largest_gap_at_most_tau_and_tau_for_one_class():
    means = torch.tensor([[[0.0], [3.0], [9.0]], [[2.0], [0.0], [0.0]]])
    present = torch.tensor([[True, True, True], [True, False, False]])
    assert float(margin(means, present, 100.0)) == 6.0  # of means 1, 3 and 9
    assert float(margin(means, present, 4.0)) == 4.0
    assert float(margin(means, present & torch.tensor([True, False, False]), 4.0)) == 4.0
