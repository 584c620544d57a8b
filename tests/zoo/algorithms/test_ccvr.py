"""CCVR against its equations in NumPy, and what clients and the server have of it."""

import numpy as np
import pytest
import torch
from algorithms_by_name import (
    assert_leaves_close,
    assert_rounds_follow,
    federation_of,
    run,
    server_of,
)
from engine_runs import mlp
from references import initial, vector
from scipy.linalg import sqrtm

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.state.randomness import torch_generator

LR, ROUNDS, EPOCHS, SIZE, SIZES = 0.3, 3, 2, 3, (9, 1, 14, 8, 12)
OPTIONS = {"num_virtual": 7, "epochs": 2, "batch_size": 4, "head_lr": 0.5, "first_round": 2}


def outcome(federation):
    """The server's parameters, and those that it sends."""
    sent = federation.algorithm.broadcast(federation.server)
    return [vector(weights["params"]) for weights in (federation.server, sent)]


def moments(clients, c):
    """(examples, mean, covariance) of a class, combined from those of the clients."""
    own = [x[y == c] for x, y in clients]
    own = [x for x in own if len(x)]
    num = sum(map(len, own))
    if not num:
        return 0, None, None
    mean = sum(len(x) / num * x.mean(0) for x in own)
    if num == 1:
        return 1, mean, np.zeros((5, 5))
    scatter = sum(
        (len(x) - 1) * (np.cov(x, rowvar=False) if len(x) > 1 else 0)
        + len(x) * np.outer(x.mean(0), x.mean(0))
        for x in own
    )
    return num, mean, (scatter - num * np.outer(mean, mean)) / (num - 1)


def luo(reference, start, cohorts):
    """CCVR of Luo et al. 2021: (calibrated, FedAvg's) parameters after every round."""
    w, data = start[0], reference.data
    for round_idx, cohort in enumerate(cohorts, start=1):
        models = [reference.sgd(k, round_idx, w) for k in cohort]
        w = np.average(models, axis=0, weights=[reference.size(k) for k in cohort])
        calibrated = w
        if round_idx >= OPTIONS["first_round"]:
            at = [data.train_clients.indices_of(k) for k in cohort]
            inputs, targets = data.examples.inputs.double().numpy(), data.examples.targets.numpy()
            clients = [(inputs[i], targets[i]) for i in at]
            rng = torch_generator(0, "virtual features", round_idx)
            noise = torch.randn(3, OPTIONS["num_virtual"], 5, generator=rng, dtype=torch.float64)
            features, labels = [], []
            for c in range(3):
                num, mean, covariance = moments(clients, c)
                if num:
                    features.append(mean + noise[c].numpy() @ sqrtm(covariance).real)
                    labels += [c] * OPTIONS["num_virtual"]
            features, labels = np.concatenate(features), np.array(labels)
            for _ in range(OPTIONS["epochs"]):
                for step in torch.randperm(len(labels), generator=rng).split(4):
                    batch = features[step.numpy()], labels[step.numpy()]
                    calibrated = calibrated - 0.5 * reference.gradient(calibrated, batch)
        yield calibrated, w


@pytest.mark.parametrize(("engine", "stack"), [(EagerTraining, 1), (FusedTraining, 5)])
@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6}], ids=["all", "some"])
def test_rounds_follow_the_paper(engine, stack, sampling, make_data, make_federation):
    federation = federation_of(
        *(make_data, make_federation, "ccvr", initial(5, 3)),
        sizes=SIZES,
        rounds=ROUNDS,
        lr=LR,
        local_epochs=EPOCHS,
        batching=Batching(SIZE),
        sampling=sampling,
        algorithm=OPTIONS,
    )
    # The root of a singular covariance is that of rounding errors in some directions.
    options = {"engine": engine, "stack": stack, "tol": 1e-5}
    expected = assert_rounds_follow(federation, outcome, luo, **options)
    assert [abs(a - b).max() > 0.1 for a, b in expected] == [False, True, True]


def test_without_epochs_it_is_fedavg(make_data, make_federation):
    def solve(name, **algorithm):
        options = {"sizes": (7, 2, 5), "rounds": 3, "local_epochs": 2, "algorithm": algorithm}
        return run(federation_of(make_data, make_federation, name, mlp(), **options))

    fedavg = solve("fedavg")
    found = solve("ccvr", epochs=0)
    assert_leaves_close(server_of(found), server_of(fedavg), tol=1e-9)
    assert found.history[-1]["comm/up_bytes"] == fedavg.history[-1]["comm/up_bytes"]


def test_other_layers_are_those_of_fedavg_and_the_moments_are_counted(make_data, make_federation):
    def solve(name, **algorithm):
        options = {"rounds": 2, "batching": Batching(3), "algorithm": algorithm}
        return run(federation_of(make_data, make_federation, name, mlp(), **options))

    fedavg, found = solve("fedavg"), solve("ccvr", num_virtual=5, first_round=2)
    expected = server_of(fedavg)
    assert_leaves_close(found.server["trained"]["params"], expected, tol=1e-9)
    for name, leaf in server_of(found).items():
        assert torch.equal(leaf, expected[name]) == name.startswith("0."), name
    before, after = (row["comm/up_bytes"] for row in found.history[1:])
    assert after - before == 3 * 4 * (3 + 3 * 8 + 3 * 8 * 8)
