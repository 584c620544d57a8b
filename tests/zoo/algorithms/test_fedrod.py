"""FedRoD against its equations in plain torch, its limit, and predictions."""

from functools import partial

import pytest
import torch
from algorithms_by_name import (
    assert_leaves_close,
    assert_rounds_follow,
    federation_of,
    run,
    server_of,
    states_of,
)
from engine_runs import mlp
from torch.nn import functional as F

from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS = (7, 1, 5), 0.3, 2, 4
HEAD = ("2.weight", "2.bias")


def chen(reference, start, cohorts, *, gamma):
    """FedRoD of Chen and Chao 2022: (shared model, personal heads by client) of every round."""
    w, heads = start[0], {}
    for round_idx, cohort in enumerate(cohorts, start=1):
        done = {}
        for k in cohort:
            counts = [reference.labels(k).count(c) for c in range(3)]
            powers = torch.tensor(counts).double() ** gamma
            w_k = dict(w)
            v_k = heads.get(k, [w[name] for name in HEAD])
            for step in reference.steps(k, round_idx):
                x, y = map(torch.as_tensor, step)
                rows = torch.arange(len(y))
                w_k = {n: p.detach().requires_grad_() for n, p in w_k.items()}
                v_k = [p.detach().requires_grad_() for p in v_k]
                z = torch.tanh(x @ w_k["0.weight"].T + w_k["0.bias"])
                g = z @ w_k["2.weight"].T + w_k["2.bias"]
                weighted = powers * g.exp()
                balanced = -(weighted[rows, y] / weighted.sum(1)).log().mean()
                of_w = torch.autograd.grad(balanced, list(w_k.values()), retain_graph=True)
                both = g.detach() + z.detach() @ v_k[0].T + v_k[1]
                empirical = -(both.exp()[rows, y] / both.exp().sum(1)).log().mean()
                of_v = torch.autograd.grad(empirical, v_k)
                w_k = {n: w_k[n].detach() - LR * d for n, d in zip(w_k, of_w, strict=True)}
                v_k = [p.detach() - LR * d for p, d in zip(v_k, of_v, strict=True)]
            done[k], heads[k] = w_k, v_k
        w = reference.mean(done) if done else w
        yield w, dict(heads)


def outcome(federation):
    """(shared model, personal heads by client)."""
    heads = states_of(federation, lambda state: [state["params"][name] for name in HEAD])
    return server_of(federation), heads


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.7}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "gamma"), [(-1, 1.0), (3, 0.4)])
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, gamma, sampling):
    """Client 1 has one example, so that it lacks two classes."""
    federation = federation_of(
        *(make_data, make_federation, "fedrod", mlp().double()),
        sizes=SIZES,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm={"gamma": gamma},
    )
    assert_rounds_follow(federation, outcome, partial(chen, gamma=gamma))


def test_clients_predict_with_the_sum_of_both_heads(make_data, make_federation):
    """Before its first round, both heads of a client are the server's."""
    federation = federation_of(
        *(make_data, make_federation, "fedrod", mlp().double()),
        sizes=(12, 10, 11),
        split=(0.0, 0.4),
        rounds=2,
        sampling={"count": 1},
    )
    run(federation)
    found = federation.engine.evaluate(federation.server, federation.plans(2, []))["personal"]
    trained = [k for k in range(3) if federation.engine.site.states.get(k)]
    assert 0 < len(trained) < 3
    w = server_of(federation)
    for k in range(3):
        indices = federation.data.splits["test"].indices_of(k)
        x, y = federation.data.examples.inputs[indices], federation.data.examples.targets[indices]
        z = torch.tanh(x.double() @ w["0.weight"].T + w["0.bias"])
        v = federation.engine.site.states.get(k)["params"] if k in trained else w
        logits = z @ (w["2.weight"] + v["2.weight"]).T + w["2.bias"] + v["2.bias"]
        assert found.values["loss"][k] == pytest.approx(
            F.cross_entropy(logits, y).item(), rel=1e-5
        )


def test_with_gamma_zero_the_shared_model_is_that_of_fedavg(make_data, make_federation):
    def made(name, **algorithm):
        return federation_of(
            *(make_data, make_federation, name, mlp()),
            sizes=SIZES,
            rounds=3,
            local_epochs=2,
            batching=Batching(3),
            algorithm=algorithm,
        )

    fedavg = server_of(run(made("fedavg")))
    found = made("fedrod", gamma=0.0)
    assert_leaves_close(server_of(run(found)), fedavg, tol=1e-9)
