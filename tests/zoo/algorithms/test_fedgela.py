"""FedGELA against its equations in plain torch, and predictions."""

import pytest
import torch
from algorithms_by_name import assert_rounds_follow, federation_of, run, server_of, states_of
from engine_runs import mlp
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS, TAU = (7, 1, 5), 0.2, 2, 4, 0.4
V = (3 / 2) ** 0.5 * (torch.eye(3).double() - torch.ones(3, 3).double() / 3)


def projected(w, x):
    """<f, v_c> [B, C]."""
    z = torch.tanh(x @ w["0.weight"].T + w["0.bias"])
    outputs = z @ w["2.weight"].T + w["2.bias"]
    return outputs / outputs.norm(dim=1, keepdim=True) @ V


def fan(reference, start, cohorts):
    """FedGELA of Fan et al. 2023: (shared model, clients' models and Phi) of every round."""
    w, personal = start[0], {}
    for round_idx, cohort in enumerate(cohorts, start=1):
        done = {}
        for k in cohort:
            counts = torch.tensor([reference.labels(k).count(c) for c in range(3)]).double()
            phi, w_k = 3 * counts / reference.size(k), w
            for step in reference.steps(k, round_idx):
                x, y = map(torch.as_tensor, step)
                w_k = {n: p.detach().requires_grad_() for n, p in w_k.items()}
                loss = F.cross_entropy(projected(w_k, x) * phi / TAU, y)
                grads = torch.autograd.grad(loss, [*w_k.values()])
                w_k = {n: (w_k[n] - LR * g).detach() for n, g in zip(w_k, grads, strict=True)}
            done[k], personal[k] = w_k, (w_k, phi)
        w = reference.mean(done) if done else w
        yield w, dict(personal)


def outcome(federation):
    """(shared model, clients' models and Phi)."""

    def own(state):
        return state["params"], state["buffers"][".phi"]

    return server_of(federation), states_of(federation, own)


@pytest.mark.parametrize(
    ("batch_size", "sampling", "engine"),
    [(-1, {}, FusedTraining), (3, {"fraction": 0.7}, EagerTraining)],
)
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, sampling, engine):
    """Client 1 has one example, so that it lacks two classes."""
    federation = federation_of(
        *(make_data, make_federation, "fedgela", mlp().double()),
        sizes=SIZES,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm={"tau": TAU},
    )
    assert_rounds_follow(federation, outcome, fan, engine=engine)


def test_clients_predict_with_their_own_model_and_class_counts(make_data, make_federation):
    """Before its first round, a client has the server's model, and all classes alike."""
    federation = federation_of(
        *(make_data, make_federation, "fedgela", mlp().double()),
        sizes=(12, 10, 11),
        split=(0.0, 0.4),
        rounds=2,
        sampling={"count": 1},
        algorithm={"tau": TAU},
    )
    run(federation)
    found = federation.engine.evaluate(federation.server, federation.plans(2, []))["personal"]
    shared, personal = outcome(federation)
    assert 0 < len(personal) < 3
    for k in range(3):
        indices = federation.data.splits["test"].indices_of(k)
        x, y = federation.data.examples.inputs[indices].double(), federation.data.examples.targets
        w, phi = personal.get(k, (shared, torch.ones(3)))
        expected = F.cross_entropy(projected(w, x) * phi / TAU, y[indices])
        assert found.values["loss"][k] == pytest.approx(expected.item(), rel=1e-5)
        outputs = torch.tanh(x @ shared["0.weight"].T + shared["0.bias"])
        outputs = outputs @ shared["2.weight"].T + shared["2.bias"]
        assert torch.equal(outputs.argmax(1), projected(shared, x).argmax(1))
