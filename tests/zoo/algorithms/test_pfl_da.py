"""PFL-DA against its equations, in plain torch and double precision."""

from functools import partial

import pytest
import torch
from algorithms_by_name import assert_rounds_follow, federation_of, server_of, states_of
from engine_runs import mlp
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS, BATCH = (7, 2, 1, 20), 0.3, 2, 4, 3
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")


def gradients(w, x, y):
    own = {n: p.detach().clone().requires_grad_() for n, p in w.items()}
    z = torch.tanh(x @ own["0.weight"].T + own["0.bias"])
    loss = F.cross_entropy(z @ own["2.weight"].T + own["2.bias"], y)
    return dict(zip(own, torch.autograd.grad(loss, [*own.values()]), strict=True))


def shi(reference, start, cohorts, *, beta):
    """PFL-DA of Shi and Kontar 2023: (shared head, personal models by client).

    After each step, a personal head is the mean of itself and the server's, which weighs beta.
    """
    start = start[0]
    shared, models = {n: start[n] for n in HEAD}, {}
    for round_idx, cohort in enumerate(cohorts, start=1):
        heads = []
        for k in cohort:
            # A new client has the server's head, and the initial body.
            body = {n: models[k][n] if k in models else start[n] for n in BODY}
            own = {n: models[k][n] if k in models else shared[n] for n in HEAD}
            head = dict(shared)
            for step in reference.steps(k, round_idx):
                x, y = map(torch.as_tensor, step)
                both = gradients({**body, **head}, x, y)
                personal = gradients({**body, **own}, x, y)
                moved = {n: own[n] - LR * personal[n] for n in HEAD}
                own = {n: (1 - beta) * moved[n] + beta * shared[n] for n in HEAD}
                body = {n: body[n] - LR * both[n] for n in BODY}
                head = {n: head[n] - LR * both[n] for n in HEAD}
            models[k] = {**body, **own}
            heads.append(head)
        if heads:
            shared = {n: torch.stack([head[n] for head in heads]).mean(0) for n in HEAD}
        yield {**start, **shared}, dict(models)


def outcome(federation):
    """(server's model, whose body stays the initial one, personal models by client)."""
    models = states_of(
        federation, lambda state: {**state["own"]["params"], **state["inner"]["params"]}
    )
    return server_of(federation), models


@pytest.mark.parametrize(
    ("beta", "engine", "stack"), [(0.9, EagerTraining, "auto"), (0.1, FusedTraining, 4)]
)
def test_rounds_follow_the_authors_code(make_data, make_federation, beta, engine, stack):
    found = federation_of(
        *(make_data, make_federation, "pfl_da", mlp().double()),
        sizes=SIZES,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
        batching=Batching(BATCH),
        sampling={"fraction": 0.7, "dropout": 0.2},
        algorithm={"lam": beta / (1 - beta) / LR},
    )
    equations = partial(shi, beta=beta)
    assert_rounds_follow(found, outcome, equations, engine=engine, stack=stack)
