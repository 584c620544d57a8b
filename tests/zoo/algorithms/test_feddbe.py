"""FedDBE against its equations in plain torch, warnings, and its personal models."""

from functools import partial

import pytest
import torch
from algorithms_by_name import (
    algorithm_of,
    assert_rounds_follow,
    federation_of,
    personal_of,
    run,
    server_of,
    states_of,
)
from engine_runs import mlp
from torch import nn
from torch.nn import functional as F

from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS = (7, 2, 5), 0.2, 2, 4


def features(w, x):
    return torch.tanh(x @ w["0.weight"].T + w["0.bias"])


def zhang(reference, start, cohorts, *, kappa, mu):
    """FedDBE: (shared model, biases by client) of every round; round 1 finds the consensus."""
    w, biases, consensus = start[0], {}, None
    for round_idx, cohort in enumerate(cohorts, start=1):
        done, means = {}, {}
        for k in cohort:
            w_k, b_k = dict(w), biases.get(k, torch.zeros(8).double())
            m_k = torch.zeros(8).double()
            for step in reference.steps(k, round_idx):
                x, y = map(torch.as_tensor, step)
                w_k = {n: p.detach().requires_grad_() for n, p in w_k.items()}
                b_k = b_k.detach().requires_grad_()
                z = features(w_k, x)
                m_k = (1 - mu) * m_k.detach() + mu * z.sum(0) / len(y)
                if consensus is None:
                    loss = (
                        F.cross_entropy(z @ w_k["2.weight"].T + w_k["2.bias"], y) + 0 * b_k.sum()
                    )
                else:
                    shifted = torch.stack([row + b_k for row in z])
                    loss = F.cross_entropy(shifted @ w_k["2.weight"].T + w_k["2.bias"], y)
                    loss = loss + kappa / 2 * ((m_k - consensus) ** 2).sum() / 8
                grads = torch.autograd.grad(loss, [*w_k.values(), b_k])
                w_k = {n: w_k[n].detach() - LR * g for n, g in zip(w_k, grads[:-1], strict=True)}
                b_k = b_k.detach() - LR * grads[-1]
            done[k], biases[k], means[k] = w_k, b_k, m_k.detach()
        w = reference.mean(done) if done else w
        if done and consensus is None:
            consensus = reference.mean(means)
        yield w, dict(biases)


def outcome(federation):
    """(shared model, biases by client)."""
    return server_of(federation), states_of(federation, lambda state: state["params"][".bias"])


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.7}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "kappa", "mu"), [(-1, 2.0, 1.0), (3, 5.0, 0.3)])
def test_trajectories_follow_the_paper(
    make_data, make_federation, batch_size, kappa, mu, sampling
):
    federation = federation_of(
        *(make_data, make_federation, "feddbe", mlp().double()),
        sizes=SIZES,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm={"kappa": kappa, "mu": mu},
    )
    expected = assert_rounds_follow(federation, outcome, partial(zhang, kappa=kappa, mu=mu))
    assert max(float(b_k.abs().max()) for b_k in expected[-1][1].values()) > 1e-3


def test_personal_models_add_the_bias_to_features(make_data, make_federation):
    federation = federation_of(
        *(make_data, make_federation, "feddbe", mlp().double()), sizes=SIZES, rounds=3, lr=LR
    )
    run(federation)
    w, x = server_of(federation), federation.data.examples.inputs.double()
    for k in range(3):
        b_k = federation.engine.site.states.get(k)["params"][".bias"]
        own = personal_of(federation, k)
        expected = (features(w, x) + b_k) @ w["2.weight"].T + w["2.bias"]
        found = features(own, x) @ own["2.weight"].T + own["2.bias"]
        torch.testing.assert_close(found, expected)


def test_a_head_without_bias_is_refused():
    model = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3, bias=False))
    with pytest.raises(ValueError, match=r"algorithm\.head=null is 1\.weight; .* with a bias"):
        algorithm_of("feddbe", model)
