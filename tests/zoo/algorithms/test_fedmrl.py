"""FedMRL against the authors' code, in plain torch and double precision, and its limits."""

import pytest
import torch
from algorithms_by_name import (
    algorithm_of,
    assert_leaves_close,
    federation_of,
    personal_of,
    run,
    server_of,
)
from engine_runs import mlp, net
from torch import nn
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.models.family import with_same_features
from flfast.state.plan import Batching

LR, ROUNDS, EPOCHS, SIZE, SIZES, DIM = 0.2, 3, 2, 3, (8, 3, 6, 4), 3


def small():
    """Five inputs, six hidden units, of which pairs are averaged to three features."""
    return net(lambda: nn.Linear(5, 6), nn.ReLU, lambda: nn.Linear(6, 3))


def own_features(v, x):
    return torch.tanh(x @ v["0.weight"].T + v["0.bias"])


def small_features(w, x):
    z = torch.relu(x @ w[".common.body.0.weight"].T + w[".common.body.0.bias"])
    return (z[:, ::2] + z[:, 1::2]) / 2


def fused(w, v, x, of_shared):
    z = torch.cat([of_shared(w, x), own_features(v, x)], 1)
    return z @ v[".projection.weight"].T + v[".projection.bias"]


def step(w, v, x, y, of_shared, top):
    both = [{n: p.clone().requires_grad_() for n, p in own.items()} for own in (w, v)]
    r = fused(*both, x, of_shared)
    weight, bias = (both[0][f"{top}.{kind}"] for kind in ("weight", "bias"))
    loss = F.cross_entropy(r[:, : weight.shape[1]] @ weight.T + bias, y)
    loss = loss + F.cross_entropy(r @ both[1]["2.weight"].T + both[1]["2.bias"], y)
    grads = iter(torch.autograd.grad(loss, [p for own in both for p in own.values()]))
    return [{n: (p - LR * next(grads)).detach() for n, p in own.items()} for own in both]


def expected(federation, of_shared, top):
    """The shared model after `ROUNDS`, and each client's own model with its projection."""
    data, w, clients = federation.data, federation.server["params"], {}
    x, y = data.examples.inputs.double(), data.examples.targets
    for round_idx in range(1, ROUNDS + 1):
        uploads = []
        for k in federation.cohort(round_idx).clients.tolist():
            batches = data.client(k, batching=Batching(SIZE), round_idx=round_idx)
            first = federation.algorithm.client_state({"params": w, "buffers": {}})["params"]
            w_k, v_k = w, clients.get(k, first)
            for _ in range(EPOCHS):
                order = batches.next_order()
                for i in range(0, len(order), SIZE):
                    at = torch.from_numpy(order[i : i + SIZE])
                    w_k, v_k = step(w_k, v_k, x[at], y[at], of_shared, top)
            clients[k] = v_k
            uploads.append((len(data.train_clients.indices_of(k)), w_k))
        total = sum(size for size, _ in uploads)
        w = {n: sum(size / total * w_k[n] for size, w_k in uploads) for n in w}
    return w, clients


@pytest.mark.parametrize(("engine", "stack"), [(EagerTraining, 1), (FusedTraining, 3)])
@pytest.mark.parametrize("has_common", [True, False], ids=["common", "alike"])
def test_rounds_follow_the_authors_code(engine, stack, has_common, make_data, make_federation):
    common = {"common": small(), "sub_dim": DIM} if has_common else {}
    federation = federation_of(
        *(make_data, make_federation, "fedmrl", mlp().double()),
        sizes=SIZES,
        lr=LR,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        algorithm=common,
        batching=Batching(SIZE),
        sampling={"fraction": 0.75},
    )
    of_shared, top = (small_features, ".common.head") if has_common else (own_features, "2")
    federation.server = federation.algorithm.server_state(federation.initial)
    w, clients = expected(federation, of_shared, top)
    run(federation, engine, stack=stack)
    assert_leaves_close(server_of(federation), w, tol=1e-8)
    assert len(clients) > 1
    for k, v in clients.items():
        found = personal_of(federation, k)
        assert_leaves_close({n: found[n] for n in v}, v, tol=1e-8)


def test_the_own_model_predicts_with_the_servers_shared_one(make_data, make_federation):
    federation = federation_of(
        *(make_data, make_federation, "fedmrl", mlp().double()),
        algorithm={"common": small(), "sub_dim": DIM},
        rounds=2,
        split=(0.0, 0.3),
        sizes=SIZES,
        eval_every=1,
    )
    run(federation)
    hits, num = 0, 0
    for k in range(len(SIZES)):
        at = federation.data.splits["test"].indices_of(k)
        x, y = federation.data.examples.inputs[at].double(), federation.data.examples.targets[at]
        v = personal_of(federation, k)
        r = fused(server_of(federation), v, x, small_features)
        hits += int(((r @ v["2.weight"].T + v["2.bias"]).argmax(1) == y).sum())
        num += len(y)
    assert num > 0
    assert federation.history[-1]["personal/accuracy"] == pytest.approx(hits / num)


def test_only_the_small_model_is_sent_with_a_quarter_of_the_features(make_data, make_federation):
    options = {"algorithm": {"common": small()}}
    federation = run(
        federation_of(make_data, make_federation, "fedmrl", mlp().double(), **options)
    )
    size = 5 * 6 + 6 + (8 // 4) * 3 + 3
    assert federation.history[-1]["comm/up_bytes"] == 3 * size * 8


@pytest.mark.parametrize(("common", "sub_dim"), [(True, 9), (False, 4)], ids=["large", "alone"])
def test_features_that_do_not_fit_are_refused(common, sub_dim):
    with pytest.raises(ValueError, match=rf"algorithm\.sub_dim={sub_dim}: allowed: null; with"):
        algorithm_of("fedmrl", mlp(), common=small() if common else None, sub_dim=sub_dim)


def test_members_with_one_size_of_features_get_one_small_model():
    """Each member builds the algorithm with the same module, whose own head has more inputs."""
    common = with_same_features(small(), 4)
    shared = [
        algorithm_of("fedmrl", mlp(), common=common).server_state({})["params"] for _ in range(2)
    ]
    assert shared[0][".common.head.weight"].shape == (3, 2)
    assert_leaves_close(*shared, tol=0)
