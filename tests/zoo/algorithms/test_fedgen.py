"""FedGen against its equations, in plain torch and double precision, and its limit."""

import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, personal_of, run, server_of
from engine_runs import mlp
from sampling import others_slow
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.state.randomness import torch_generator

LR, ROUNDS, EPOCHS, SIZE, SIZES = 0.2, 3, 2, 3, (8, 3, 6, 4)
OPTIONS = {"alpha": 3.0, "decay": 0.7, "num_virtual": 4, "server_steps": 6, "server_lr": 0.02}
DRAWS = OPTIONS["num_virtual"]
HEAD = ("2.weight", "2.bias")


def head(w, z):
    return z @ w["2.weight"].T + w["2.bias"]


def local_loss(w, x, y):
    return F.cross_entropy(head(w, torch.tanh(x @ w["0.weight"].T + w["0.bias"])), y)


def features(g, rng):
    """(features, noise, classes) of M draws of each class."""
    classes = torch.arange(3).repeat_interleave(DRAWS)
    noise = torch.randn(3 * DRAWS, 32, generator=rng, dtype=torch.float32).double()
    return torch.relu(noise @ g["U"].T + g["u"][classes]) @ g["V"].T + g["v"], noise, classes


def generated_loss(w, z, classes, weights):
    """Cross-entropy of a head at features; the mean of each class has a weight."""
    errors = F.cross_entropy(head(w, z), classes, reduction="none")
    return sum(weights[c] * errors[classes == c].mean() for c in range(3))


def train_generator(g, optimizer, models, labels, rng):
    num = sum(map(sum, labels))
    for _ in range(OPTIONS["server_steps"]):
        z, noise, classes = features(g, rng)
        pairs = [
            (noise[i] - noise[j]).square().mean() * (z[i] - z[j]).abs().mean()
            for i in range(len(z))
            for j in range(len(z))
        ]
        loss = torch.exp(-torch.stack(pairs).mean())
        for w, counts in zip(models, labels, strict=True):
            loss = loss + generated_loss(w, z, classes, [count / num for count in counts])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def expected(federation, share):
    """(model, generator, label shares, bodies by client) after `ROUNDS`."""
    data, w = federation.data, federation.initial["params"]
    x, y = data.examples.inputs.double(), data.examples.targets
    g = {n: p.clone().requires_grad_() for n, p in federation.server["generator"].items()}
    optimizer = torch.optim.Adam(g.values(), lr=OPTIONS["server_lr"], weight_decay=0.01)
    shares, bodies = None, {}
    for t in range(1, ROUNDS + 1):
        models, labels = [], []
        for k in federation.cohort(t).clients.tolist():
            rng = torch_generator(data.seed, "algorithm: features", t, k)
            z, _, classes = (v.detach() for v in features(g, rng))
            batches = data.client(k, batching=Batching(SIZE), round_idx=t)
            w_k = {**w, **bodies.get(k, {})}
            for _ in range(EPOCHS):
                order = batches.next_order()
                for i in range(0, len(order), SIZE):
                    at = torch.from_numpy(order[i : i + SIZE])
                    own = {n: p.clone().requires_grad_() for n, p in w_k.items()}
                    loss = local_loss(own, x[at], y[at])
                    if shares is not None:
                        factor = OPTIONS["alpha"] * OPTIONS["decay"] ** (t - 1)
                        loss = loss + factor * generated_loss(own, z, classes, shares)
                    grads = torch.autograd.grad(loss, list(own.values()))
                    w_k = {n: w_k[n] - LR * d for n, d in zip(own, grads, strict=True)}
            models.append(w_k)
            if share == "head":
                bodies[k] = {n: p for n, p in w_k.items() if n not in HEAD}
            counts = y[data.train_clients.indices_of(k)].bincount(minlength=3)
            labels.append(counts.tolist())
        total = sum(map(sum, labels))
        shares = [sum(counts[c] for counts in labels) / total for c in range(3)]
        weights = [sum(counts) / total for counts in labels]
        mean = {n: sum(a * m[n] for a, m in zip(weights, models, strict=True)) for n in w}
        w = mean if share == "model" else {**w, **{n: mean[n] for n in HEAD}}
        train_generator(g, optimizer, models, labels, torch_generator(0, "generator", t))
    return w, {n: p.detach() for n, p in g.items()}, torch.tensor(shares).double(), bodies


def make(make_data, make_federation, name, **options):
    return federation_of(
        *(make_data, make_federation, name, mlp().double()),
        sizes=SIZES,
        lr=LR,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        batching=Batching(SIZE),
        **options,
    )


@pytest.mark.parametrize("share", ["model", "head"])
@pytest.mark.parametrize(("engine", "stack"), [(EagerTraining, 1), (FusedTraining, 3)])
def test_rounds_follow_the_paper(engine, stack, share, make_data, make_federation):
    options = {**OPTIONS, "hidden_dim": 5, "share": share}
    sampling = {"fraction": 0.75}
    federation = make(make_data, make_federation, "fedgen", algorithm=options, sampling=sampling)
    federation.server = federation.algorithm.server_state(federation.initial)
    before = federation.server["generator"]
    w, g, shares, bodies = expected(federation, share)
    run(federation, engine, stack=stack)
    assert_leaves_close(server_of(federation), w, tol=1e-6)
    assert_leaves_close(federation.server["generator"], g, tol=1e-6)
    assert len(bodies) == (0 if share == "model" else len(SIZES))
    for k, body in bodies.items():
        assert_leaves_close(personal_of(federation, k), {**w, **body}, tol=1e-6)
    strength = OPTIONS["alpha"] * OPTIONS["decay"] ** ROUNDS
    torch.testing.assert_close(
        federation.server["strengths"], strength * shares, rtol=1e-6, atol=0
    )
    assert min((g[n] - before[n]).abs().max() for n in g) > 0.1


@pytest.mark.slow
def test_with_alpha_zero_it_is_fedavg(make_data, make_federation):
    fedavg = run(make(make_data, make_federation, "fedavg"))
    found = run(make(make_data, make_federation, "fedgen", algorithm={"alpha": 0.0}))
    assert_leaves_close(server_of(found), server_of(fedavg), tol=1e-9)


@pytest.mark.parametrize("share", others_slow(["model", "head"], ["head"]))
def test_clients_send_what_they_share_once_and_their_label_counts(
    share, make_data, make_federation
):
    federation = run(make(make_data, make_federation, "fedgen", algorithm={"share": share}))
    sent = federation.initial["params"].items()
    size = sum(leaf.nbytes for name, leaf in sent if share == "model" or name in HEAD)
    assert federation.history[-1]["comm/up_bytes"] == len(SIZES) * (size + 3 * 8)


@pytest.mark.slow
def test_the_generator_learns_features_that_heads_recognise(make_data, make_federation):
    options = {**OPTIONS, "alpha": 0.0, "server_steps": 100, "num_virtual": 20}
    federation = run(make(make_data, make_federation, "fedgen", algorithm=options))
    z, _, classes = features(federation.server["generator"], torch_generator(1, "test"))
    found = head(server_of(federation), z).argmax(1)
    assert (found == classes).double().mean() > 0.9
