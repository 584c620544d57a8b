"""FedMD against Algorithm 1 of the paper, in plain torch and double precision."""

from copy import deepcopy

import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, personal_of, run
from engine_runs import mlp, with_batchnorm
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.state.randomness import torch_generator

LR, ROUNDS, EPOCHS, SIZES, BATCH = 0.1, 3, 2, (7, 4, 10, 6), 4
PUBLIC, SUBSET, DIGEST = 12, 5, 3


def drawn(round_idx):
    rng = torch_generator(0, "fedmd", round_idx)
    return torch.randperm(PUBLIC, generator=rng)[:SUBSET]


def step(sgd, loss):
    sgd.zero_grad()
    loss.backward()
    sgd.step()


def digest(model, sgd, public, taught, num_steps):
    """Steps on public examples, in the order of the subset, as often as it takes."""
    inputs, labels = public
    at = 0
    for size in num_steps:
        places = torch.arange(at, at + size) % SUBSET
        rows = drawn(taught[0])[places]
        logits = model(inputs[rows])
        loss = F.cross_entropy(logits, labels[rows])
        if taught[1] is not None:
            loss = (logits - taught[1][places]).abs().mean()
        step(sgd, loss)
        at += size


def li(model, data, cohorts):
    """The clients' models after the rounds."""
    x, y = data.examples.inputs.double(), data.examples.targets
    own = data.train_clients.indices_of(data.server)
    public, models, taught = (x[own], y[own]), {}, (0, None)
    for round_idx, cohort in enumerate(cohorts, start=1):
        scores = []
        for k in cohort:
            client = models.setdefault(k, deepcopy(model)).train()
            batches = data.client(k, batching=Batching(BATCH), round_idx=round_idx)
            sizes = [len(part) for part in torch.arange(len(batches.indices)).split(BATCH)]
            sgd = torch.optim.SGD(client.parameters(), lr=LR)
            digest(client, sgd, public, taught, sizes * DIGEST)
            for _ in range(DIGEST):
                batches.next_order()  # the engine reads batches that the digest ignores
            for _ in range(EPOCHS):
                for at in torch.from_numpy(batches.next_order()).split(BATCH):
                    step(sgd, F.cross_entropy(client(x[at]), y[at]))
            with torch.no_grad():
                scores.append(client.eval()(public[0][drawn(round_idx)]))
        taught = (round_idx, torch.stack(scores).mean(0))
    return models


@pytest.mark.parametrize(("engine", "stack"), [(EagerTraining, 1), (FusedTraining, 3)])
@pytest.mark.parametrize("make_model", [mlp, with_batchnorm])
def test_rounds_follow_the_paper(make_data, make_federation, engine, stack, make_model):
    model = make_model().double()
    federation = federation_of(
        *(make_data, make_federation, "fedmd", model),
        sizes=SIZES,
        server_examples=PUBLIC,
        lr=LR,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        batching=Batching(BATCH),
        sampling={"fraction": 0.75},
        algorithm={"subset": SUBSET, "digest_epochs": DIGEST},
    )
    cohorts = [federation.cohort(r).clients.tolist() for r in range(1, ROUNDS + 1)]
    expected = li(model, federation.data, cohorts)
    run(federation, engine, stack=stack)
    for k, own in expected.items():
        found = personal_of(federation, k)
        assert_leaves_close(found, dict(own.named_parameters()), tol=1e-8)
    messages = federation.history[-1]
    assert messages["comm/up_bytes"] == 3 * SUBSET * 3 * 8  # clients, rows, classes, float64
