"""FedPAC against Algorithm 1 of the paper, in plain torch and double precision."""

from itertools import product

import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, run, server_of
from engine_runs import mlp
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.zoo.algorithms.fedpac import combinations

SIZES, LR, EPOCHS, ROUNDS, BATCH = (7, 2, 1, 1, 1, 20), 0.1, 2, 9, 3
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")


def features(w, x):
    return torch.tanh(x @ w["0.weight"].T + w["0.bias"])


def descend(w, loss, names, lr):
    own = {n: p.detach().requires_grad_() for n, p in w.items()}
    grads = torch.autograd.grad(loss(own), [own[n] for n in names])
    return {**w, **{n: w[n] - lr * g for n, g in zip(names, grads, strict=True)}}


def error(w, x, y):
    return F.cross_entropy(features(w, x) @ w["2.weight"].T + w["2.bias"], y)


def moments(w, x, y):
    """(P(y) E[z | y] of every class, V) of one client, by the definitions of the paper."""
    z, n = features(w, x), len(y)
    means, v = torch.zeros(3, z.shape[1]).double(), 0.0
    for label in y.unique().tolist():
        of_class = z[y == label]
        p = len(of_class) / n
        means[label] = p * of_class.mean(0)
        second = of_class.T @ of_class / len(of_class)
        v += p * torch.trace(second) - p**2 * of_class.mean(0).square().sum()
    return means, v / n


def best_weights(k, means, variances):
    """The minimum over every face of the simplex that has one inside, by Lagrange's equations."""
    m, num = torch.stack(means), len(means)
    far = (m[k] - m).flatten(1)
    matrix = far @ far.T + torch.stack(variances).diag()
    best = (float("inf"), None)
    for face in product([False, True], repeat=num):
        at = [j for j in range(num) if face[j]]
        if at:
            system = torch.ones(len(at) + 1, len(at) + 1).double()
            system[:-1, :-1], system[-1, -1] = 2 * matrix[at][:, at], 0
            right = torch.tensor([0.0] * len(at) + [1.0]).double()
            found = torch.linalg.lstsq(system, right, driver="gelsd").solution[:-1]
            a = torch.zeros(num).double().index_copy(0, torch.tensor(at), found)
            value = (a @ matrix @ a).item()
            if (a >= -1e-12).all() and abs(a.sum() - 1) < 1e-9 and value < best[0] - 1e-15:
                best = (value, a)
    return best[1]


def locally(w, steps, centroids, *, lam, head_lr):
    """Local training: one epoch of the head, then those of the body."""
    for number, (x, y) in enumerate(steps):
        if number < len(steps) // (1 + EPOCHS):
            w = descend(w, lambda w, x=x, y=y: error(w, x, y), HEAD, head_lr * LR)
            continue
        pairs = zip(y.tolist(), features(w, x), strict=True)
        goal = torch.stack([centroids.get(label, z) for label, z in pairs])

        def aligned(w, x=x, y=y, goal=goal):
            return error(w, x, y) + lam * F.mse_loss(features(w, x), goal)

        w = descend(w, aligned, BODY, LR)
    return w


def steps_of(data, k, round_idx):
    client = data.client(k, batching=Batching(BATCH), round_idx=round_idx)
    inputs, targets = data.examples.inputs.double(), data.examples.targets
    orders = [torch.as_tensor(client.next_order()).split(BATCH) for _ in range(1 + EPOCHS)]
    return [(inputs[at], targets[at]) for order in orders for at in order]


def examples_of(data, k):
    at = data.train_clients.indices_of(k)
    return data.examples.inputs[at].double(), data.examples.targets[at]


def xu(found, **options):
    """FedPAC of Xu et al. 2023: (body, heads by client, centroids, weights, absences)."""
    start, data = found.initial["params"], found.data
    body, heads, centroids, used = {n: start[n] for n in BODY}, {}, {}, []
    absent = set()
    for round_idx in range(1, ROUNDS + 1):
        cohort = found.cohort(round_idx).clients.tolist()
        trained, sent, of_class = {}, [], {}
        for k in cohort:
            w = {**body, **heads.get(k, {n: start[n] for n in HEAD})}
            x, y = examples_of(data, k)
            sent.append(moments(w, x, y))
            trained[k] = w = locally(w, steps_of(data, k, round_idx), centroids, **options)
            for z, label in zip(features(w, x), y.tolist(), strict=True):
                of_class.setdefault(label, []).append(z)
        absent |= centroids.keys() - of_class.keys()
        centroids.update({label: torch.stack(z).mean(0) for label, z in of_class.items()})
        n = sum(SIZES[k] for k in cohort)
        body = {p: sum((SIZES[k] / n * trained[k][p] for k in cohort), 0 * body[p]) for p in BODY}
        for place, k in enumerate(cohort):
            a = best_weights(place, *map(list, zip(*sent, strict=True)))
            pairs = [*zip(a, trained.values(), strict=True)]
            heads[k] = {p: sum(share * w[p] for share, w in pairs) for p in HEAD}
            used.append(a)
    return body, heads, centroids, used, absent


@pytest.mark.parametrize(
    ("options", "engine", "stack"),
    [
        ({"lam": 1.0, "head_lr": 2.0}, EagerTraining, "auto"),
        ({"lam": 5.0, "head_lr": 1.0}, FusedTraining, 4),
    ],
)
def test_rounds_follow_the_paper(make_data, make_federation, options, engine, stack):
    found = federation_of(
        *(make_data, make_federation, "fedpac", mlp().double()),
        sizes=SIZES,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
        batching=Batching(BATCH),
        sampling={"fraction": 0.34},
        algorithm=options,
    )
    assert all(len(found.cohort(r).clients) for r in range(1, ROUNDS + 1))
    body, heads, centroids, used, absent = xu(found, **options)
    assert absent  # or no class kept its last centroid
    assert any(((a > 0.05) & (a < 0.95)).any() for a in used)  # or heads were not combined
    run(found, engine, stack=stack)
    assert_leaves_close({n: server_of(found)[n] for n in BODY}, body, tol=1e-7)
    for label, mean in centroids.items():
        torch.testing.assert_close(found.server["c"][label], mean, rtol=1e-7, atol=1e-7)
    for k, head in heads.items():
        assert_leaves_close(found.engine.site.records.get(k)["params"], head, tol=1e-7)


def test_equal_clients_share_evenly_and_noise_counts():
    means = torch.ones(3, 2, 4)
    weights = combinations(means, torch.tensor([1.0, 1.0, 2.0]))
    expected = torch.tensor([[0.4, 0.4, 0.2]] * 3).double()
    torch.testing.assert_close(weights, expected)
    far = torch.eye(3).view(3, 1, 3)
    torch.testing.assert_close(combinations(far, torch.zeros(3)), torch.eye(3).double())
