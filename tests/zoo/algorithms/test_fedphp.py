"""FedPHP against its equations in plain torch, its limits, and both engines."""

from functools import partial

import pytest
import torch
from algorithms_by_name import (
    assert_leaves_close,
    assert_rounds_follow,
    federation_of,
    personal_of,
    run,
    server_of,
    states_of,
)
from engine_runs import mlp
from torch.nn import functional as F

from flfast.state.plan import Batching
from flfast.zoo.algorithms.kit.discrepancy import squared_mmd

SIZES, LR, EPOCHS, ROUNDS = (7, 2, 5), 0.3, 2, 4


def mmd_by_pairs(first, second):
    """Squared maximum mean discrepancy, pair by pair of examples."""
    points, num = [*first, *second], len(first)
    if num == 1:
        return 0.0
    distances = [[((a - b) ** 2).sum() for b in points] for a in points]
    total = sum(float(d.detach()) for row in distances for d in row)
    mean = total / (2 * num * (2 * num - 1)) + 1e-8
    value = 0.0
    for i, row in enumerate(distances):
        for j, d in enumerate(row):
            kernel = sum(torch.exp(-d / (mean * scale)) for scale in (0.25, 0.5, 1, 2, 4))
            value = value + kernel * (1 if (i < num) == (j < num) else -1)
    return value / num**2


def features(w, x):
    return torch.tanh(x @ w["0.weight"].T + w["0.bias"])


def li(reference, start, cohorts, *, mu, lam, fraction):
    """FedPHP of Li et al. 2021: (server's model, inherited models by client) of every round."""
    w, inherited, taken = start[0], {}, {}
    for round_idx, cohort in enumerate(cohorts, start=1):
        done = {}
        for k in cohort:
            p_k = inherited.get(k, w)
            w_k = {n: p.clone() for n, p in w.items()}
            for step in reference.steps(k, round_idx):
                x, y = map(torch.as_tensor, step)
                w_k = {n: p.detach().requires_grad_() for n, p in w_k.items()}
                z = features(w_k, x)
                error = F.cross_entropy(z @ w_k["2.weight"].T + w_k["2.bias"], y)
                loss = (1 - lam) * error + lam * mmd_by_pairs(z, features(p_k, x))
                grads = torch.autograd.grad(loss, list(w_k.values()))
                w_k = {n: w_k[n].detach() - LR * g for n, g in zip(w_k, grads, strict=True)}
            mu_k = mu * min(taken.get(k, 0) / (ROUNDS * fraction), 1)
            inherited[k] = {n: mu_k * p_k[n] + (1 - mu_k) * w_k[n] for n in w}
            taken[k] = taken.get(k, 0) + 1
            done[k] = w_k
        w = reference.mean(done) if done else w
        yield w, dict(inherited)


def outcome(federation):
    """(server's model, inherited models by client)."""
    return server_of(federation), states_of(federation, lambda state: state["params"])


@pytest.mark.parametrize(
    "sampling", [{}, {"fraction": 0.7}, {"count": 2}], ids=["all", "some", "two"]
)
@pytest.mark.parametrize(("batch_size", "mu", "lam"), [(-1, 0.9, 0.1), (3, 0.5, 0.6)])
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, mu, lam, sampling):
    fraction = (
        sampling["count"] / len(SIZES) if "count" in sampling else sampling.get("fraction", 1.0)
    )
    federation = federation_of(
        make_data,
        make_federation,
        "fedphp",
        mlp().double(),
        sizes=SIZES,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm={"mu": mu, "lam": lam, "horizon": ROUNDS, **sampling},
    )
    equations = partial(li, mu=mu, lam=lam, fraction=fraction)
    assert_rounds_follow(federation, outcome, equations)


def test_the_discrepancy_is_that_of_all_pairs():
    torch.manual_seed(0)  # noqa: TID251 - a test's own numbers
    first, second = torch.randn(5, 3).double(), torch.randn(5, 3).double() + 1
    torch.testing.assert_close(squared_mmd(first, second), mmd_by_pairs(first, second))
    assert squared_mmd(first, first).item() == pytest.approx(0)
    equal = first.requires_grad_()
    (grad,) = torch.autograd.grad(squared_mmd(equal, first.detach()), equal)
    assert grad.abs().max() < 1e-12


def test_with_mu_zero_personal_models_are_the_last_local_ones(make_data, make_federation):
    """With one round as the horizon, the second round's momentum is the largest."""
    options = {"sizes": SIZES, "rounds": 3, "local_epochs": 2, "batching": Batching(3)}
    last, slow = (
        run(
            federation_of(
                *(make_data, make_federation, "fedphp", mlp()),
                algorithm={"mu": mu, "horizon": 1},
                **options,
            )
        )
        for mu in (0.0, 0.99)
    )
    start = last.initial["params"]

    def way(federation):
        personal = personal_of(federation, 0)
        return sum(float((personal[n] - start[n]).square().sum()) for n in start)

    assert_leaves_close(server_of(last), server_of(slow), tol=0.1)
    assert way(slow) < way(last)
