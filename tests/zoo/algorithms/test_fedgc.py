"""FedGC against its equations, in plain torch and double precision, and its limits."""

from functools import partial

import pytest
import torch
from algorithms_by_name import assert_leaves_close, assert_rounds_follow, federation_of, run
from engine_runs import mlp
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS, BATCH = (7, 2, 1, 1, 9), 0.3, 2, 4, 3
BODY, W, B = ("0.weight", "0.bias"), "2.weight", "2.bias"


def classes_of(data, k):
    return sorted(set(data.examples.targets[data.train_clients.indices_of(k)].tolist()))


def regulariser(heads, classes):
    """Reg, class by class; each class's mean embedding is a constant."""
    total = 0.0
    for k in heads:
        for c in classes[k]:
            owners = [j for j in heads if c in classes[j]]
            mean = sum(heads[j][c].detach() for j in owners) / len(owners)
            others = [j for j in heads if j not in owners]
            terms = [torch.exp(heads[j][d] @ mean) for j in others for d in classes[j]]
            own = torch.exp(mean @ mean)
            total = total - torch.log(own / (own + sum(terms)))
    return total


def corrected(heads, classes, server_lr):
    """All heads after a step on Reg."""
    point = {k: head[W].clone().requires_grad_() for k, head in heads.items()}
    value = regulariser(point, classes)
    if not torch.is_tensor(value) or not value.requires_grad:
        return heads
    grads = torch.autograd.grad(value, list(point.values()), allow_unused=True)
    moves = {k: 0 if g is None else server_lr * g for k, g in zip(point, grads, strict=True)}
    return {k: {**head, W: head[W] - moves[k]} for k, head in heads.items()}


def descend(w, x, y, own):
    w = {n: p.detach().requires_grad_() for n, p in w.items()}
    z = torch.tanh(x @ w["0.weight"].T + w["0.bias"])
    logits = z @ w[W][own].T + w[B][own]
    loss = F.cross_entropy(logits, torch.tensor([own.index(label) for label in y.tolist()]))
    grads = torch.autograd.grad(loss, list(w.values()))
    return {n: (w[n] - LR * g).detach() for n, g in zip(w, grads, strict=True)}


def niu(reference, start, cohorts, *, server_lr):
    """FedGC of Niu and Deng 2022: personal models by client after every round."""
    start = start[0]
    classes = [sorted(set(reference.labels(k))) for k in range(len(SIZES))]
    body, heads = {n: start[n] for n in BODY}, {}
    for round_idx, cohort in enumerate(cohorts, start=1):
        sent, trained = corrected(heads, classes, server_lr), {}
        for k in cohort:
            w = {**start, **body, **sent.get(k, {})}
            for step in reference.steps(k, round_idx):
                w = descend(w, *map(torch.as_tensor, step), classes[k])
            trained[k] = w
        if cohort:
            body = reference.mean({k: {n: w[n] for n in BODY} for k, w in trained.items()})
        heads |= {k: {n: w[n] for n in (W, B)} for k, w in trained.items()}
        models = {
            k: {**start, **body, **h} for k, h in corrected(heads, classes, server_lr).items()
        }
        yield [models.get(k, {**start, **body}) for k in range(len(SIZES))]


def outcome(federation):
    """Personal models."""
    engine, server = federation.engine, federation.server
    return [engine.personal_weights(server, k)["params"] for k in range(federation.population)]


@pytest.fixture
def federation(make_data, make_federation):
    def federation(name="fedgc", **options):
        return federation_of(
            *(make_data, make_federation, name, mlp().double()),
            **{"sizes": SIZES, "rounds": ROUNDS, "local_epochs": EPOCHS, "lr": LR, **options},
        )

    return federation


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.5, "dropout": 0.2}], ids=["all", "some"])
@pytest.mark.parametrize(
    ("server_lr", "engine", "stack"), [(0.5, EagerTraining, "auto"), (0.1, FusedTraining, 4)]
)
def test_rounds_follow_the_paper(federation, server_lr, engine, stack, sampling):
    found = federation(
        batching=Batching(BATCH), sampling=sampling, algorithm={"server_lr": server_lr}
    )
    equations = partial(niu, server_lr=server_lr)
    expected = assert_rounds_follow(found, outcome, equations, engine=engine, stack=stack)
    uploaded = found.engine.site.records
    far = [(expected[-1][k][W] - uploaded.get(k)["params"][W]).abs() for k in uploaded.clients()]
    assert max(float(moved.max()) for moved in far) > 0.01  # or nothing was corrected


def test_clients_predict_among_their_own_classes(make_data, make_federation):
    model = mlp().double()
    model[2].bias.data[0] = 9.0  # without a restriction, class 0 would always win
    found = federation_of(
        *(make_data, make_federation, "fedgc", model),
        sizes=(12, 4, 4, 4),
        split=(0.0, 0.5),
        rounds=2,
        eval_every=1,
    )
    run(found)
    scores = found.engine.evaluate(found.server, found.plans(2, []))["personal"]
    lacking = [k for k in range(4) if 0 not in classes_of(found.data, k)]
    assert lacking
    for k in lacking:
        at, own = found.data.splits["test"].indices_of(k), classes_of(found.data, k)
        x, y = found.data.examples.inputs[at].double(), found.data.examples.targets[at]
        w = found.engine.personal_weights(found.server, k)["params"]
        logits = torch.tanh(x @ w["0.weight"].T + w["0.bias"]) @ w[W].T + w[B]
        assert (logits.argmax(1) == 0).all()
        best = torch.tensor(own)[logits[:, own].argmax(1)]
        assert scores.values["accuracy"][k] == pytest.approx((best == y).double().mean().item())


def test_where_all_clients_have_all_classes_it_is_fedper(federation):
    found, fedper = (
        run(federation(name, sizes=(8, 9, 7), rounds=2)) for name in ("fedgc", "fedper")
    )
    assert all(classes_of(found.data, k) == [0, 1, 2] for k in range(3))
    for models in zip(outcome(found), outcome(fedper), strict=True):
        assert_leaves_close(*models, tol=1e-9)
