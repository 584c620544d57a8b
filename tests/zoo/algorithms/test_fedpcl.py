"""FedPCL against the equations of the paper, in plain torch and double precision."""

import math

import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, run
from engine_runs import mlp
from references import Reference
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS = (7, 2, 1, 9), 0.1, 2, 4
BODY = ("0.weight", "0.bias")


def features(w, x):
    z = torch.tanh(x @ w["0.weight"].T + w["0.bias"])
    return z / z.norm(dim=1, keepdim=True)


def contrast(z, label, prototypes, tau):
    """Loss of one example with prototypes by class."""
    others = [p for j, p in prototypes.items() if j != label]
    if label not in prototypes or not others:
        return 0.0
    return -torch.log(
        torch.exp(z @ prototypes[label] / tau) / sum(torch.exp(z @ p / tau) for p in others)
    )


def tan(initial, reference, cohorts, *, tau):
    """FedPCL of Tan et al. 2022: (weights, prototypes) by client after all rounds."""
    weights, local = {}, {}
    for round_idx, cohort in enumerate(cohorts, start=1):
        by_class = {j: [own[j] for own in local.values() if j in own] for j in range(3)}
        shared = {j: sum(found) / len(found) for j, found in by_class.items() if found}
        sets = [{**shared, **own} for own in local.values()]
        uploaded = {}
        for k in cohort:
            w = weights.get(k, initial)
            for step in reference.steps(k, round_idx):
                x, y = map(torch.as_tensor, step)
                own = {n: w[n].detach().requires_grad_() for n in BODY}
                loss = 0.0 * sum(p.sum() for p in own.values())
                for z, label in zip(features(own, x), y.tolist(), strict=True):
                    loss = loss + contrast(z, label, shared, tau)
                    for theirs in sets:
                        loss = loss + contrast(z, label, theirs, tau) / len(sets)
                grads = torch.autograd.grad(loss / len(y), list(own.values()))
                w = {**w, **{n: w[n] - LR * g for n, g in zip(BODY, grads, strict=True)}}
            at, examples = reference.data.train_clients.indices_of(k), reference.data.examples
            z, y = features(w, examples.inputs[at].double()), examples.targets[at]
            weights[k] = w
            uploaded[k] = {label: z[y == label].mean(0) for label in y.unique().tolist()}
        local.update(uploaded)
    return weights, local


@pytest.fixture
def federation(make_data, make_federation):
    def federation(**options):
        return federation_of(
            *(make_data, make_federation, "fedpcl", mlp().double()),
            local_epochs=EPOCHS,
            lr=LR,
            **{"sizes": SIZES, "rounds": ROUNDS, **options},
        )

    return federation


@pytest.mark.parametrize(
    ("batch_size", "chosen", "engine", "stack", "sampling"),
    [
        (-1, {"num_sets": 4}, EagerTraining, 1, {}),
        (3, {"tau": 0.5}, EagerTraining, 1, {"fraction": 0.7, "dropout": 0.3}),
        (3, {"num_sets": 6}, FusedTraining, 4, {"fraction": 0.7, "dropout": 0.3}),
    ],
)
def test_rounds_follow_the_paper(federation, batch_size, chosen, engine, stack, sampling):
    found = federation(batching=Batching(batch_size), sampling=sampling, algorithm=chosen)
    reference = Reference(found.data, batch_size, EPOCHS, LR)
    cohorts = [found.cohort(r).clients.tolist() for r in range(1, ROUNDS + 1)]
    start = found.initial["params"]
    weights, local = tan(start, reference, cohorts, tau=chosen.get("tau", 0.07))
    run(found, engine, stack=stack)
    states = found.engine.site.states
    for k, expected in weights.items():
        kept = states.get(k)
        assert_leaves_close(kept["own"]["params"], expected, tol=1e-9)
        for label, prototype in local[k].items():
            torch.testing.assert_close(kept["inner"]["prototypes"][label], prototype)
        assert kept["inner"]["known"].tolist() == [float(j in local[k]) for j in range(3)]
    moved = max((w["0.weight"] - start["0.weight"]).abs().max().item() for w in weights.values())
    assert moved > 0.01, "nothing happened"


def test_the_server_sends_prototypes_of_those_that_uploaded_last(federation):
    found = run(federation(algorithm={"num_sets": 2}, sampling={"fraction": 0.5}, rounds=5))
    last = found.cohort(5).clients.tolist()
    assert found.server["local"]["clients"].tolist() == last
    row, sets = found.history[-1], 1 + 2
    assert row["comm/up_bytes"] == 2 * (3 * 8 + 3) * 8
    assert row["comm/down_bytes"] == 2 * (sets * (3 * 8 + 1) + 3) * 8


def test_a_client_predicts_the_class_of_its_nearest_prototype(federation):
    found = run(federation(sizes=(12, 10), split=(0.0, 0.4), rounds=2, eval_every=1))
    results = found.engine.evaluate(found.server, found.plans(2, []))["personal"]
    for k in range(2):
        at, examples = found.data.splits["test"].indices_of(k), found.data.examples
        kept = found.engine.site.states.get(k)
        z = features(kept["own"]["params"], examples.inputs[at].double())
        right = 0
        for i, label in enumerate(examples.targets[at].tolist()):
            far = [
                (z[i] - p).square().sum().item() if known else math.inf
                for p, known in zip(
                    kept["inner"]["prototypes"], kept["inner"]["known"], strict=True
                )
            ]
            right += far.index(min(far)) == label
        assert results.values["accuracy"][k] == pytest.approx(right / len(at))


def test_one_class_has_no_contrast(make_data, make_federation):
    data = make_data((4, 5))
    data.examples.targets[:] = 1
    found = federation_of(
        lambda *args, **kwargs: data, make_federation, "fedpcl", mlp().double(), sizes=(4, 5)
    )
    run(found)
    for k in range(2):
        kept = found.engine.site.states.get(k)["own"]["params"]
        assert F.mse_loss(kept["0.weight"], found.initial["params"]["0.weight"]) == 0
