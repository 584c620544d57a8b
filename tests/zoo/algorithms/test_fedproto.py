"""FedProto against its equations, in plain torch and double precision."""

import pytest
import torch
from algorithms_by_name import federation_of, run
from engine_runs import mlp
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

LR, ROUNDS, STEPS, SIZES, LAM = 0.1, 3, 2, (8, 6, 7), 0.7


def features(weights, x):
    return torch.tanh(x @ weights["0.weight"].T + weights["0.bias"])


def expected(data, weights):
    """Prototypes, their counts, and every client's weights after `ROUNDS`."""
    clients = []
    for client in range(len(SIZES)):
        indices = data.train_clients.indices_of(client)
        clients.append((data.examples.inputs[indices].double(), data.examples.targets[indices]))
    own = [weights] * len(clients)
    prototypes, counts = torch.zeros(3, 8).double(), torch.zeros(3).double()
    for _ in range(ROUNDS):
        sums, numbers = torch.zeros(3, 8).double(), torch.zeros(3).double()
        for k, (x, y) in enumerate(clients):
            for _ in range(STEPS):
                point = {n: w.clone().requires_grad_() for n, w in own[k].items()}
                z = features(point, x)
                pull = (z - prototypes[y]).square().sum(1) / 8 * (counts[y] > 0)
                logits = z @ point["2.weight"].T + point["2.bias"]
                loss = F.cross_entropy(logits, y) + LAM * pull.mean()
                grads = torch.autograd.grad(loss, list(point.values()))
                own[k] = {n: own[k][n] - LR * g for n, g in zip(point, grads, strict=True)}
            sums += F.one_hot(y, 3).double().T @ features(own[k], x)
            numbers += F.one_hot(y, 3).double().sum(0)
        prototypes, counts = sums / numbers.clamp(min=1).unsqueeze(1), numbers
    return prototypes, counts, own


@pytest.mark.parametrize(("engine", "stack"), [(EagerTraining, 1), (FusedTraining, 3)])
def test_rounds_follow_the_paper(engine, stack, make_data, make_federation):
    federation = federation_of(
        *(make_data, make_federation, "fedproto", mlp().double()),
        sizes=SIZES,
        lr=LR,
        rounds=ROUNDS,
        local_epochs=STEPS,
        algorithm={"lam": LAM},
        batching=Batching(16),
    )
    prototypes, counts, own = expected(federation.data, federation.initial["params"])
    run(federation, engine, stack=stack)
    torch.testing.assert_close(federation.server["prototypes"], prototypes)
    assert federation.server["counts"].tolist() == counts.tolist()
    for k, weights in enumerate(own):
        kept = federation.engine.site.states.get(k)["own"]["params"]
        torch.testing.assert_close(kept, weights)


def test_a_client_predicts_the_nearest_prototype(make_data, make_federation):
    federation = federation_of(
        *(make_data, make_federation, "fedproto", mlp().double()),
        sizes=(12, 10),
        split=(0.0, 0.4),
        rounds=2,
        eval_every=1,
    )
    run(federation)
    found = federation.engine.evaluate(federation.server, federation.plans(2, []))["personal"]
    for k in range(2):
        indices = federation.data.splits["test"].indices_of(k)
        x, y = federation.data.examples.inputs[indices], federation.data.examples.targets[indices]
        kept = federation.engine.site.states.get(k)["own"]["params"]
        far = torch.cdist(features(kept, x.double()), federation.server["prototypes"])
        assert found.values["accuracy"][k] == pytest.approx(
            (far.argmin(1) == y).double().mean().item()
        )
        scores = F.log_softmax(-far.square(), dim=1)
        loss = F.nll_loss(scores, y).item()
        assert found.values["loss"][k] == pytest.approx(loss, rel=1e-5)


def test_prototypes_are_all_that_is_sent(make_data, make_federation):
    federation = run(federation_of(make_data, make_federation, "fedproto", mlp().double()))
    assert federation.history[-1]["comm/up_bytes"] == 3 * (3 * 8 + 3) * 8
