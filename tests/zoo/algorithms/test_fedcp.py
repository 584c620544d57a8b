"""FedCP against its equations in plain torch, the authors' kernel, and predictions."""

from functools import partial

import pytest
import torch
from algorithms_by_name import assert_rounds_follow, federation_of, run, states_of
from engine_runs import mlp
from torch.nn import functional as F

from flfast.state.plan import Batching
from flfast.zoo.algorithms.kit.discrepancy import squared_mmd

SIZES, LR, EPOCHS, ROUNDS = (7, 1, 5), 0.2, 2, 4
HEAD = ("2.weight", "2.bias")


def features(w, x):
    return torch.tanh(x @ w["0.weight"].T + w["0.bias"])


def logits(w, z, own, shared, v):
    """Of features [B, D]; `own` and `shared` are (matrix, bias) of the heads, `v` is [D]."""
    hidden = (z * v / v.square().sum().sqrt()) @ w[".gate.0.weight"].T + w[".gate.0.bias"]
    centred = hidden - hidden.mean(1, keepdim=True)
    scaled = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    found = F.relu(scaled * w[".gate.1.weight"] + w[".gate.1.bias"])
    first, second = found[:, :8].exp(), found[:, 8:].exp()
    r, s = first / (first + second), second / (first + second)
    return (r * z) @ own[0].T + own[1] + (s * z) @ shared[0].T + shared[1]


def mmd_by_pairs(first, second):
    """Squared maximum mean discrepancy with the kernels of the authors' code."""

    def mean(left, right):
        pairs = [((a - b) ** 2).sum() for a in left for b in right]
        kernels = [torch.exp(-0.5 * d / a) for d in pairs for a in (10, 15, 20, 50)]
        return sum(kernels) / len(pairs)

    return mean(first, first) + mean(second, second) - 2 * mean(first, second)


def zhang(reference, start, cohorts, *, lam):
    """FedCP: (body, shared head and gate; personal heads by client) of every round."""
    w, heads = start[0], {}
    for round_idx, cohort in enumerate(cohorts, start=1):
        done = {}
        shared = [w[name] for name in HEAD]
        for k in cohort:
            own = heads.get(k, shared)
            v = own[0].sum(0)
            w_k = {name: leaf for name, leaf in w.items() if name not in HEAD}
            for step in reference.steps(k, round_idx):
                x, y = map(torch.as_tensor, step)
                w_k = {n: p.detach().requires_grad_() for n, p in w_k.items()}
                own = [p.detach().requires_grad_() for p in own]
                z = features(w_k, x)
                loss = F.cross_entropy(logits(w_k, z, own, shared, v), y)
                loss = loss + lam * mmd_by_pairs(z, features(w, x))
                grads = torch.autograd.grad(loss, [*w_k.values(), *own])
                w_k = {n: w_k[n].detach() - LR * g for n, g in zip(w_k, grads, strict=False)}
                own = [p.detach() - LR * g for p, g in zip(own, grads[-2:], strict=True)]
            mixed = [(p + g) / 2 for p, g in zip(own, shared, strict=True)]
            done[k] = {**w_k, **dict(zip(HEAD, mixed, strict=True))}
            heads[k] = own
        w = reference.mean(done) if done else w
        yield w, dict(heads)


def outcome(federation):
    """(body, shared head and gate; personal heads by client)."""
    heads = states_of(federation, lambda state: [state["params"][name] for name in HEAD])
    return federation.server["params"], heads


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.7}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "lam"), [(-1, 5.0), (3, 0.7)])
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, lam, sampling):
    federation = federation_of(
        *(make_data, make_federation, "fedcp", mlp().double()),
        sizes=SIZES,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm={"lam": lam},
    )
    start = federation.algorithm.server_state(federation.initial)["params"]
    expected = assert_rounds_follow(federation, outcome, partial(zhang, lam=lam))
    assert all((expected[-1][0][name] - start[name]).abs().max() > 1e-4 for name in start)


def test_the_kernel_is_that_of_the_authors():
    torch.manual_seed(0)  # noqa: TID251 - a test's own numbers
    for num in (1, 4):
        first, second = torch.randn(num, 3).double(), torch.randn(num, 3).double() + 2
        found = squared_mmd(first, second, widths=(20, 30, 40, 100))
        torch.testing.assert_close(found, mmd_by_pairs(first, second))


def test_clients_predict_with_both_heads(make_data, make_federation):
    federation = federation_of(
        *(make_data, make_federation, "fedcp", mlp().double()),
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
    shared = [w[name] for name in HEAD]
    for k in range(3):
        indices = federation.data.splits["test"].indices_of(k)
        x, y = federation.data.examples.inputs[indices], federation.data.examples.targets[indices]
        state = states.get(k)
        own = shared if state is None else [state["params"][name] for name in HEAD]
        expected = logits(w, features(w, x.double()), own, shared, own[0].sum(0))
        assert found.values["loss"][k] == pytest.approx(
            F.cross_entropy(expected, y).item(), rel=1e-5
        )
