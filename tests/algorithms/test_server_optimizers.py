"""The server steps of FedAvgM, FedAdam, FedYogi, FedAdagrad and FedOpt against the papers."""

from functools import partial

import numpy as np
import pytest
import torch
from engine_runs import ran, with_batchnorm

from flfast.algorithms.contract.uploads import Uploads
from flfast.algorithms.fedadagrad import fedadagrad
from flfast.algorithms.fedadam import fedadam
from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.fedavgm import fedavgm
from flfast.algorithms.fednova import fednova
from flfast.algorithms.fedopt import fedopt
from flfast.algorithms.fedyogi import fedyogi
from flfast.algorithms.scaffold import scaffold
from flfast.engines.eager import EagerTraining
from flfast.zoo.algorithms.feddyn import feddyn

PARTIAL = {"fraction": 0.6, "count": None, "dropout": 0.3}
ADAM = {"server_lr": 0.05, "beta1": 0.9, "beta2": 0.99, "tau": 0.01}
TORCH_ADAM = {"lr": 0.05, "betas": (0.8, 0.99), "eps": 0.01}
ADAGRAD = {"server_lr": 0.1, "beta1": 0.3, "tau": 0.01}


def updates(reference, w, cohort, round_idx, *, uniform=False):
    """Weighted mean of the local updates."""
    sizes = [1.0 if uniform else reference.size(k) for k in cohort]
    moved = [reference.sgd(k, round_idx, w) - w for k in cohort]
    return np.average(moved, axis=0, weights=sizes)


def reddi(second_moment, *, server_lr, beta1, tau, **_):
    """Algorithm 2 of Reddi et al. 2021, line by line."""

    def equations(reference, w, cohorts):
        m, v = np.zeros_like(w), np.full_like(w, tau**2)
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                delta = updates(reference, w, cohort, round_idx)
                m = beta1 * m + (1 - beta1) * delta
                v = second_moment(v, delta)
                w = w + server_lr * m / (np.sqrt(v) + tau)
            yield w

    return equations


def adam(*, lr, betas, eps):
    """Algorithm 1 of Kingma and Ba 2015; the gradient is minus the mean update."""

    def equations(reference, w, cohorts):
        m, v, t = np.zeros_like(w), np.zeros_like(w), 0
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                gradient, t = -updates(reference, w, cohort, round_idx), t + 1
                m = betas[0] * m + (1 - betas[0]) * gradient
                v = betas[1] * v + (1 - betas[1]) * gradient**2
                unbiased = np.sqrt(v / (1 - betas[1] ** t))
                w = w - lr * m / (1 - betas[0] ** t) / (unbiased + eps)
            yield w

    return equations


def hsu(*, server_lr, momentum):
    """FedAvgM of Hsu et al. 2019."""

    def equations(reference, w, cohorts):
        v = np.zeros_like(w)
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                v = momentum * v - updates(reference, w, cohort, round_idx)
                w = w - server_lr * v
            yield w

    return equations


@pytest.mark.parametrize("sampling", [{}, PARTIAL], ids=["all", "some"])
@pytest.mark.parametrize(
    ("algorithm", "equations"),
    [
        (
            partial(fedadagrad, **ADAGRAD),
            reddi(lambda v, d: v + d**2, **ADAGRAD),
        ),
        (
            partial(fedadam, **ADAM),
            reddi(lambda v, d: 0.99 * v + 0.01 * d**2, **ADAM),
        ),
        (
            partial(fedyogi, **ADAM),
            reddi(lambda v, d: v - 0.01 * d**2 * np.sign(v - d**2), **ADAM),
        ),
        (
            partial(fedavgm, server_lr=0.7, momentum=0.9),
            hsu(server_lr=0.7, momentum=0.9),
        ),
        (
            partial(fedopt, server_optimizer=partial(torch.optim.Adam, **TORCH_ADAM)),
            adam(**TORCH_ADAM),
        ),
    ],
    ids=["fedadagrad", "fedadam", "fedyogi", "fedavgm", "fedopt"],
)
def test_trajectories_follow_the_paper(assert_follows, algorithm, equations, sampling):
    assert_follows(algorithm(weighting="samples"), equations, batch_size=2, sampling=sampling)


def run_step(algorithm, *, start, means):
    """The scalar parameter after each server step, given the means of the uploads."""
    server = algorithm.server_state({"params": {"w": torch.tensor(start)}, "buffers": {}})
    found = []
    for mean in means:
        upload = {"params": {"w": torch.tensor(mean)}, "buffers": {}}
        server = algorithm.server_step(server, Uploads(upload, num_clients=2, population=2))
        found.append(float(server["params"]["w"]))
    return found


def test_the_first_step_of_fedadam_by_hand():
    """Delta = 3: m = 0.1 * 3 and v = 0.99 * 0.01^2 + 0.01 * 3^2 = 0.090099."""
    (found,) = run_step(fedadam(**ADAM, weighting="samples"), start=2.0, means=[3.0])
    assert found == pytest.approx(2 + 0.05 * 0.3 / (0.090099**0.5 + 0.01))


def test_plain_server_optimizers_are_fedavg():
    means, plain = [1.5, -2.0, 0.25], fedavg(weighting="samples")
    sgd = fedopt(server_optimizer=partial(torch.optim.SGD, lr=1.0), weighting="samples")
    without_momentum = fedavgm(server_lr=1.0, momentum=0.0, weighting="samples")
    for algorithm in (plain, sgd, without_momentum):
        assert run_step(algorithm, start=3.0, means=means) == pytest.approx([4.5, 2.5, 2.75])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            fedadagrad(server_lr=0.1, beta1=0.0, tau=0.2, weighting="samples"),
            partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.04, eps=0.2),
        ),
        (
            fedavgm(server_lr=0.5, momentum=0.9, weighting="samples"),
            partial(torch.optim.SGD, lr=0.5, momentum=0.9),
        ),
    ],
    ids=["adagrad", "momentum"],
)
def test_server_steps_equal_those_of_torch_optimizers(ours, theirs):
    theirs = fedopt(server_optimizer=theirs, weighting="samples")
    steps = [run_step(a, start=3.0, means=[1.5, -2.0, 0.25]) for a in (ours, theirs)]
    assert steps[0] == pytest.approx(steps[1])


BUFFERS = {
    "fedopt": fedopt(server_optimizer=torch.optim.Adam, weighting="samples"),
    "fedadam": fedadam(**ADAM, weighting="samples"),
    "feddyn": feddyn(alpha=1e-9),
    "scaffold": scaffold(
        server_lr=0.5, momentum=0.0, nesterov=False, local_optimizer_state="reset"
    ),
    "fednova": fednova(
        weighting="samples",
        momentum=0.0,
        nesterov=False,
        local_steps=None,
        local_optimizer_state="reset",
    ),
}


@pytest.mark.parametrize("algorithm", BUFFERS.values(), ids=BUFFERS)
def test_buffers_are_averaged(make_data, make_federation, algorithm):
    def after_a_round(algorithm):
        federation = make_federation(make_data([6, 8]), with_batchnorm(), algorithm=algorithm)
        return ran(federation, EagerTraining).server["buffers"]

    plain = fedavg(weighting=algorithm.weighting)
    torch.testing.assert_close(after_a_round(algorithm), after_a_round(plain))


def test_a_server_step_does_not_change_the_old_state():
    algorithm = fedopt(server_optimizer=torch.optim.Adam, weighting="samples")
    start = {"params": {"w": torch.tensor(3.0)}, "buffers": {}}
    uploads = Uploads({**start, "params": {"w": torch.tensor(1.0)}}, 1, 1)
    once = algorithm.server_step(algorithm.server_state(start), uploads)
    twice = [algorithm.server_step(once, uploads) for _ in range(2)]
    assert twice[0] == twice[1]
    assert start["params"]["w"] == 3


def test_unsuitable_server_optimizers_are_refused():
    with pytest.raises(
        ValueError,
        match=r"algorithm.server_optimizer needs .* whose state is tensors; count is a int",
    ):
        fedopt(server_optimizer=partial(Counting, lr=1.0), weighting="samples")
    with pytest.raises(TypeError, match="closure"):
        fedopt(server_optimizer=torch.optim.LBFGS, weighting="samples")


class Counting(torch.optim.SGD):
    """Its state has a number that is not a tensor."""

    def step(self):
        self.state[self.param_groups[0]["params"][0]]["count"] = 1
