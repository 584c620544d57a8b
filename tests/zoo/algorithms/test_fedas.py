"""FedAS against the equations of the paper, in plain torch and double precision."""

import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, personal_of, run, server_of
from engine_runs import mlp
from references import Reference
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS = (7, 2, 1, 20), 0.3, 2, 4
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")


def features(w, x):
    return torch.tanh(x @ w["0.weight"].T + w["0.bias"])


def error(w, x, y):
    return F.cross_entropy(features(w, x) @ w["2.weight"].T + w["2.bias"], y)


def gradient(w, loss, names):
    own = {n: p.detach().requires_grad_() for n, p in w.items()}
    grads = torch.autograd.grad(loss(own), [own[n] for n in names])
    return dict(zip(names, grads, strict=True))


def descend(w, loss, names, lr):
    grads = gradient(w, loss, names)
    return {n: p - lr * grads[n] if n in grads else p for n, p in w.items()}


def fisher_trace(w, x, y):
    """Trace of the mean outer product of the gradients of the log likelihood."""
    trace = 0.0
    for i in range(len(y)):
        grads = gradient(w, lambda own, i=i: error(own, x[i : i + 1], y[i : i + 1]), [*w])
        g = torch.cat([grad.flatten() for grad in grads.values()])
        trace += torch.trace(torch.outer(g, g)).item() / len(y)
    return trace


def yang(initial, reference, cohorts, *, align_epochs, align_lr):
    """FedAS of Yang et al. 2024: (server's body, clients' models) after all rounds."""
    body, models, prototypes = initial, {}, {}
    for round_idx, cohort in enumerate(cohorts, start=1):
        traces = {}
        steps = {k: reference.steps(k, round_idx, align_epochs + EPOCHS) for k in cohort}
        for k in cohort:
            head = models.get(k, initial)
            w = {**{n: body[n] for n in BODY}, **{n: head[n] for n in HEAD}}
            aligning = len(steps[k]) * align_epochs // (align_epochs + EPOCHS)
            for number, (x, y) in enumerate(steps[k]):
                if number >= aligning:
                    w = descend(w, lambda own, x=x, y=y: error(own, x, y), [*w], LR)
                elif k in prototypes:
                    target = torch.stack([prototypes[k][label] for label in y.tolist()])
                    w = descend(
                        w,
                        lambda own, x=x, t=target: F.mse_loss(features(own, x), t),
                        BODY,
                        LR * align_lr,
                    )
            x, y = reference.examples(k)
            traces[k] = fisher_trace(w, x, y)
            z = features(w, x)
            prototypes[k] = {label: z[y == label].mean(0) for label in y.tolist()}
            models[k] = w
        if cohort:
            shares = {k: trace / sum(traces.values()) for k, trace in traces.items()}
            body = {n: sum(share * models[k][n] for k, share in shares.items()) for n in BODY}
    return body, models


class Clients(Reference):
    """`Reference` in torch."""

    def steps(self, k, round_idx, epochs):
        many = Reference(self.data, self.batch_size, epochs, self.lr)
        return [tuple(map(torch.as_tensor, step)) for step in Reference.steps(many, k, round_idx)]

    def examples(self, k):
        at, examples = self.data.train_clients.indices_of(k), self.data.examples
        return examples.inputs[at].double(), examples.targets[at]


@pytest.mark.parametrize(
    ("batch_size", "chosen", "engine", "sampling"),
    [
        (-1, {}, EagerTraining, {}),
        (
            3,
            {"align_epochs": 2, "align_lr": 0.5},
            EagerTraining,
            {"fraction": 0.7, "dropout": 0.3},
        ),
        (3, {"align_lr": 2.0}, FusedTraining, {"fraction": 0.7, "dropout": 0.3}),
    ],
)
def test_rounds_follow_the_paper(make_data, make_federation, batch_size, chosen, engine, sampling):
    found = federation_of(
        *(make_data, make_federation, "fedas", mlp().double()),
        sizes=SIZES,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm=chosen,
    )
    reference = Clients(found.data, batch_size, EPOCHS, LR)
    cohorts = [found.cohort(r).clients.tolist() for r in range(1, ROUNDS + 1)]
    chosen = {"align_epochs": 1, "align_lr": 1.0, **chosen}
    body, last = yang(found.initial["params"], reference, cohorts, **chosen)
    run(found, engine)
    assert_leaves_close({n: server_of(found)[n] for n in BODY}, body, tol=1e-9)
    assert last
    for k, model in last.items():
        assert_leaves_close(personal_of(found, k), model, tol=1e-9)


def test_one_client_without_alignment_is_fedper(make_data, make_federation):
    def solve(name, **algorithm):
        return run(
            federation_of(
                *(make_data, make_federation, name, mlp().double()),
                sizes=(9,),
                rounds=3,
                batching=Batching(4),
                algorithm=algorithm,
            )
        )

    found = solve("fedas", align_epochs=0)
    assert_leaves_close(server_of(found), server_of(solve("fedper")), tol=1e-9)
