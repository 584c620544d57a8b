"""FedDF against Algorithm 1 of the paper, in plain torch and double precision."""

from copy import deepcopy

import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, run
from engine_runs import with_batchnorm
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.state.randomness import torch_generator
from flfast.zoo.algorithms.feddf import feddf

LR, ROUNDS, EPOCHS, SIZES, BATCH = 0.2, 3, 2, (7, 4, 10, 6), 4
SERVER = {"server_steps": 7, "server_lr": 0.03, "server_batch_size": 5}


def batches(data, k, size, round_idx):
    """Endless batches (inputs, labels) of a client."""
    client = data.client(k, batching=Batching(size), round_idx=round_idx)
    while True:
        order = torch.from_numpy(client.next_order())
        for part in order.split(size):
            yield data.examples.inputs[part].double(), data.examples.targets[part]


def public_batches(data, round_idx):
    """The batches of the server's steps, in passes of random order."""
    own = torch.from_numpy(data.train_clients.indices_of(data.server))
    rng = torch_generator(0, "feddf", round_idx)
    left = SERVER["server_steps"]
    while left:
        order = torch.randperm(len(own), generator=rng)
        for rows in order.split(SERVER["server_batch_size"])[:left]:
            left -= 1
            yield data.examples.inputs[own[rows]].double()


def lin(model, data, cohorts):
    """The server's model after the rounds."""
    model = deepcopy(model)
    for round_idx, cohort in enumerate(cohorts, start=1):
        clients, sizes = [], []
        for k in cohort:
            own, num = deepcopy(model).train(), len(data.train_clients.indices_of(k))
            sgd = torch.optim.SGD(own.parameters(), lr=LR)
            source = batches(data, k, BATCH, round_idx)
            for _ in range(EPOCHS * -(-num // BATCH)):
                inputs, labels = next(source)
                sgd.zero_grad()
                F.cross_entropy(own(inputs), labels).backward()
                sgd.step()
            clients.append(own.eval())
            sizes.append(num)
        states = [own.state_dict() for own in clients]
        mean = {
            name: sum(n * state[name] for n, state in zip(sizes, states, strict=True)) / sum(sizes)
            for name in states[0]
        }
        mean = {n: v if states[0][n].is_floating_point() else v.round() for n, v in mean.items()}
        model.load_state_dict(mean)
        model.train()
        adam = torch.optim.Adam(model.parameters(), lr=SERVER["server_lr"])
        for inputs in public_batches(data, round_idx):
            with torch.no_grad():
                taught = F.softmax(sum(own(inputs) for own in clients) / len(clients), dim=1)
            student = F.log_softmax(model(inputs), dim=1)
            loss = (taught * (taught.log() - student)).sum(dim=1).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
    return model


@pytest.fixture
def solve(make_data, make_federation):
    def solve(**options):
        model = options.pop("model", None) or with_batchnorm().double()
        return federation_of(
            *(make_data, make_federation, "feddf", model),
            **{
                "sizes": SIZES,
                "server_examples": 12,
                "lr": LR,
                "rounds": ROUNDS,
                "local_epochs": EPOCHS,
                "batching": Batching(BATCH),
                "sampling": {"fraction": 0.75},
                "algorithm": SERVER,
                **options,
            },
        )

    return solve


@pytest.mark.parametrize(("engine", "stack"), [(EagerTraining, 1), (FusedTraining, 3)])
def test_rounds_follow_the_paper(solve, engine, stack):
    model = with_batchnorm().double()
    federation = solve(model=model)
    cohorts = [federation.cohort(r).clients.tolist() for r in range(1, ROUNDS + 1)]
    expected = lin(model, federation.data, cohorts).state_dict()
    run(federation, engine, stack=stack)
    assert_leaves_close(federation.weights(), expected, tol=1e-8)


def test_labels_of_the_server_are_not_read(solve):
    found = []
    for flip in (False, True):
        federation = solve(rounds=2)
        data = federation.data
        own = data.train_clients.indices_of(data.server)
        if flip:
            data.examples.targets[own] = 2 - data.examples.targets[own]
        found.append(run(federation).weights())
    assert_leaves_close(*found, tol=0)


def test_an_upload_is_placed_among_zeros_for_the_other_members():
    members = [{"params": {"w": torch.ones(size)}, "buffers": {}} for size in (2, 3)]
    options = {**SERVER, "num_public": 4, "num_classes": 2, "weighting": "samples", "seed": 0}
    algorithm = feddf(**options, initial=members[1], members=members)
    broadcast = algorithm.broadcast(algorithm.server_state(members[1]))
    assert broadcast["params"]["w"].tolist() == [1, 1, 1]
    placed = algorithm.kit.place(broadcast, broadcast)
    assert placed.keys() == algorithm.parts.keys()
    assert {k: leaves["w"].tolist() for k, leaves in placed["params"].items()} == {
        "0": [0, 0],
        "1": [1, 1, 1],
    }
    assert placed["member"].tolist() == [0, 1]
