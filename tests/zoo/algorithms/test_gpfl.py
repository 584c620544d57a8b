"""GPFL against its equations in plain torch, and predictions of its clients."""

from functools import partial

import pytest
import torch
from algorithms_by_name import assert_rounds_follow, federation_of, run, states_of
from engine_runs import mlp
from torch.nn import functional as F

from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS = (7, 1, 5), 0.1, 2, 4
HEAD, ROWS = ("2.weight", "2.bias"), ".classes.weight"


def features(w, x):
    return torch.tanh(x @ w["0.weight"].T + w["0.bias"])


def branch(w, c, half):
    """gamma(c) or beta(c), by the half of the module's rows that computes it."""
    hidden = F.relu(w[".valve.0.weight"][half] @ c + w[".valve.0.bias"][half])
    centred = hidden - hidden.mean()
    scaled = centred / (centred.square().mean() + 1e-5).sqrt()
    return scaled * w[".valve.2.weight"][half] + w[".valve.2.bias"][half]


def valve(w, z, c):
    return F.relu((1 + branch(w, c, slice(8))) * z + branch(w, c, slice(8, 16)))


def zhang(reference, start, cohorts, *, head, lam, mu):
    """GPFL: (what the clients share, heads by client) of every round."""
    w, heads = start[0], {}
    for round_idx, cohort in enumerate(cohorts, start=1):
        done, rows = {}, w[ROWS]
        for k in cohort:
            w_k, own = dict(w), heads.get(k, head)
            targets = reference.data.examples.targets[reference.data.train_clients.indices_of(k)]
            numbers = [int((targets == c).sum()) for c in range(3)]
            personal = sum(n * row for n, row in zip(numbers, rows, strict=True)) / len(targets)
            for step in reference.steps(k, round_idx):
                x, y = map(torch.as_tensor, step)
                w_k = {n: p.detach().requires_grad_() for n, p in w_k.items()}
                own = [p.detach().requires_grad_() for p in own]
                z = features(w_k, x)
                p, g = valve(w_k, z, personal), valve(w_k, z, (rows[0] + rows[1] + rows[2]) / 3)
                cosines = F.cosine_similarity(g[:, None], w_k[ROWS][None], dim=2)
                magnitude = sum(
                    (a - rows[c]).square().sum().sqrt() for a, c in zip(g, y, strict=True)
                )
                decay = sum(leaf.square().sum() for n, leaf in w_k.items() if n.startswith("."))
                loss = F.cross_entropy(p @ own[0].T + own[1], y) + F.cross_entropy(cosines, y)
                loss = loss + lam * magnitude / len(y) + mu / 2 * decay
                grads = torch.autograd.grad(loss, [*w_k.values(), *own])
                w_k = {n: w_k[n].detach() - LR * g for n, g in zip(w_k, grads, strict=False)}
                own = [p.detach() - LR * g for p, g in zip(own, grads[-2:], strict=True)]
            done[k], heads[k] = w_k, own
        w = reference.mean(done) if done else w
        yield w, dict(heads)


def outcome(federation):
    """(what the clients share, heads by client)."""
    params = federation.server["params"]
    heads = states_of(federation, lambda state: [state["own"]["params"][name] for name in HEAD])
    return {name: leaf for name, leaf in params.items() if name not in HEAD}, heads


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.7}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "lam", "mu"), [(-1, 0.01, 0.1), (3, 0.5, 0.0)])
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, lam, mu, sampling):
    """Client 1 has one example, so that it lacks two classes."""
    federation = federation_of(
        *(make_data, make_federation, "gpfl", mlp().double()),
        sizes=SIZES,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm={"lam": lam, "mu": mu},
    )
    first = federation.algorithm.server_state(federation.initial)["params"]
    equations = partial(zhang, head=[first.pop(name) for name in HEAD], lam=lam, mu=mu)
    expected = assert_rounds_follow(federation, outcome, equations)
    assert all((expected[-1][0][name] - first[name]).abs().max() > 1e-4 for name in first)


def test_clients_predict_with_their_heads_and_class_counts(make_data, make_federation):
    """A client that never trained has its initial head, and counts all classes alike."""
    federation = federation_of(
        *(make_data, make_federation, "gpfl", mlp().double()),
        sizes=(12, 10, 11),
        split=(0.0, 0.4),
        rounds=2,
        lr=LR,
        sampling={"count": 1},
    )
    run(federation)
    found = federation.engine.evaluate(federation.server, federation.plans(2, []))["personal"]
    w, states = federation.server["params"], federation.engine.site.states
    assert 0 < sum(states.get(k) is not None for k in range(3)) < 3
    data = federation.data
    for k in range(3):
        indices, trained = data.splits["test"].indices_of(k), states.get(k)
        x, y = data.examples.inputs[indices], data.examples.targets[indices]
        own = trained["own"]["params"] if trained else federation.initial["params"]
        known = data.examples.targets[data.train_clients.indices_of(k)]
        rows = w[ROWS][known] if trained else w[ROWS]
        p = valve(w, features(w, x.double()), rows.mean(0))
        loss = F.cross_entropy(p @ own["2.weight"].T + own["2.bias"], y).item()
        assert found.values["loss"][k] == pytest.approx(loss, rel=1e-5)
