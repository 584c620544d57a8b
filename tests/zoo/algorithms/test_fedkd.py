"""FedKD against its equations, in plain torch and double precision, and its limit."""

import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, personal_of, run, server_of
from engine_runs import mlp
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

LR, LAM, ROUNDS, EPOCHS, SIZE, SIZES = 0.2, 0.8, 3, 2, 3, (8, 3, 6, 4)


def forward(w, x):
    z = torch.tanh(x @ w["0.weight"].T + w["0.bias"])
    return z, z @ w["2.weight"].T + w["2.bias"]


def divergence(taught, teacher):
    """KL divergence of predictions from the teacher's, by logits."""
    q = teacher.softmax(1)
    return (q * (q.log() - taught.softmax(1).log())).sum(1).mean()


def step(w, v, projection, x, y):
    """A step of mentee and projection on the mentee's loss, and of the mentor on its own."""
    new = []
    for is_mentor in (False, True):
        own = {n: p.clone().requires_grad_() for n, p in (v if is_mentor else w).items()}
        matrix = projection.clone().requires_grad_(not is_mentor)
        z_w, logits_w = forward(w if is_mentor else own, x)
        z_v, logits_v = forward(own if is_mentor else v, x)
        error_w, error_v = F.cross_entropy(logits_w, y), F.cross_entropy(logits_v, y)
        pair = (logits_v, logits_w) if is_mentor else (logits_w, logits_v)
        taught = divergence(*pair) + (z_v - z_w @ matrix.T).square().mean()
        loss = (error_v if is_mentor else error_w) + LAM * taught / (error_w + error_v)
        changed = [*own.values()] if is_mentor else [*own.values(), matrix]
        grads = torch.autograd.grad(loss, changed)
        new.append([(p - LR * g).detach() for p, g in zip(changed, grads, strict=True)])
    *mentee, projection = new[0]
    return dict(zip(w, mentee, strict=True)), dict(zip(v, new[1], strict=True)), projection


def expected(federation):
    """The mentee after `ROUNDS`, and (mentor, projection) by client."""
    data, w, clients = federation.data, federation.initial["params"], {}
    x, y = data.examples.inputs.double(), data.examples.targets
    for round_idx in range(1, ROUNDS + 1):
        uploads = []
        for k in federation.cohort(round_idx).clients.tolist():
            batches = data.client(k, batching=Batching(SIZE), round_idx=round_idx)
            w_k, (v_k, matrix) = w, clients.get(k, (w, torch.eye(8).double()))
            for _ in range(EPOCHS):
                order = batches.next_order()
                for i in range(0, len(order), SIZE):
                    at = torch.from_numpy(order[i : i + SIZE])
                    w_k, v_k, matrix = step(w_k, v_k, matrix, x[at], y[at])
            clients[k] = v_k, matrix
            uploads.append((len(data.train_clients.indices_of(k)), w_k))
        total = sum(size for size, _ in uploads)
        w = {n: sum(size / total * w_k[n] for size, w_k in uploads) for n in w}
    return w, clients


@pytest.mark.parametrize(("engine", "stack"), [(EagerTraining, 1), (FusedTraining, 1)])
def test_rounds_follow_the_paper(engine, stack, make_data, make_federation):
    federation = federation_of(
        *(make_data, make_federation, "fedkd", mlp().double()),
        sizes=SIZES,
        lr=LR,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        algorithm={"lam": LAM, "weighting": "samples"},
        batching=Batching(SIZE),
        sampling={"fraction": 0.75},
    )
    w, clients = expected(federation)
    run(federation, engine, stack=stack)
    assert_leaves_close(server_of(federation), w, tol=1e-6)
    # In a client's first round both models are equal, and the projection stays.
    assert max(float((matrix - torch.eye(8)).abs().max()) for _, matrix in clients.values()) > 1e-3
    for k, (mentor, matrix) in clients.items():
        assert_leaves_close(personal_of(federation, k), mentor, tol=1e-6)
        found = federation.engine.site.states.get(k)["params"]["fedkd/projection"]
        torch.testing.assert_close(found, matrix, check_dtype=False, rtol=1e-6, atol=1e-6)


def test_with_lam_zero_it_is_fedavg_with_local_mentors(make_data, make_federation):
    def solve(name, **algorithm):
        options = {"sizes": (7, 2, 5), "rounds": 3, "local_epochs": 2, "batching": Batching(3)}
        return run(
            federation_of(make_data, make_federation, name, mlp(), **options, algorithm=algorithm)
        )

    fedavg, local = solve("fedavg", weighting="uniform"), solve("local")
    found = solve("fedkd", lam=0.0)
    assert_leaves_close(server_of(found), server_of(fedavg), tol=1e-9)
    for k in range(3):
        assert_leaves_close(personal_of(found, k), personal_of(local, k), tol=1e-9)


def test_only_the_mentee_is_sent(make_data, make_federation):
    federation = run(federation_of(make_data, make_federation, "fedkd", mlp().double()))
    size = sum(leaf.nbytes for leaf in federation.initial["params"].values())
    assert federation.history[-1]["comm/up_bytes"] == 3 * size
