"""FedLESAM, FedLESAM-S and FedLESAM-D against their equations."""

import numpy as np
import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, run, server_of
from engine_runs import mlp, with_batchnorm
from references import control_variates, dynamic_regulariser

from flfast.zoo.algorithms.fedlesam import fedlesam
from flfast.zoo.algorithms.fedlesam_d import fedlesam_d
from flfast.zoo.algorithms.fedlesam_s import fedlesam_s
from flfast.zoo.algorithms.kit.sharpness_aware import ascent

RHO = 0.5
SGD = {"momentum": 0.0, "nesterov": False, "local_optimizer_state": "reset"}


def fan(reference):
    """(client, download) -> gradient at w + e; e points back to the client's last download."""
    downloads = {}

    def gradient_of(k, w_t):
        back = downloads.get(k, w_t) - w_t
        e = RHO * back / np.linalg.norm(back) if back.any() else back
        downloads[k] = w_t
        return lambda w, step: reference.gradient(w + e, step)

    return gradient_of


def plain(reference, w, cohorts):
    """FedAvg with equal weights."""
    gradient_of = fan(reference)
    for round_idx, cohort in enumerate(cohorts, start=1):
        models = [reference.sgd(k, round_idx, w, gradient=gradient_of(k, w)) for k in cohort]
        w = np.mean(models, axis=0) if models else w
        yield w


CASES = {
    "plain": (fedlesam(rho=RHO, weighting="uniform"), plain),
    "s": (fedlesam_s(rho=RHO, server_lr=0.7, **SGD), control_variates(0.7, fan)),
    "d": (fedlesam_d(rho=RHO, alpha=0.4), dynamic_regulariser(0.4, fan)),
}


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 2])
@pytest.mark.parametrize("case", CASES)
def test_trajectories_follow_the_paper(assert_follows, case, batch_size, sampling):
    made, equations = CASES[case]
    assert_follows(made, equations, batch_size=batch_size, sampling=sampling)


def test_a_step_takes_one_gradient(make_data, make_federation):
    """Three local steps of one client in each of two rounds: BatchNorm counts the passes."""
    federation = federation_of(
        *(make_data, make_federation, "fedlesam", with_batchnorm()),
        sizes=(6,),
        rounds=2,
        local_epochs=3,
    )
    assert int(run(federation).server["buffers"]["2.num_batches_tracked"]) == 6


def test_the_first_round_is_that_of_fedavg_also_in_half_precision(make_data, make_federation):
    """There is no earlier download: the direction is zero, and so is its step."""
    weights = {"w": torch.zeros(3, dtype=torch.float16), "b": torch.zeros(1, dtype=torch.float16)}
    assert not any(step.any() for step in ascent(weights, rho=RHO, scales={}).values())
    fedlesam, fedavg = (
        server_of(run(federation_of(make_data, make_federation, name, mlp(), rounds=1)))
        for name in ("fedlesam", "fedavg")
    )
    assert_leaves_close(fedlesam, fedavg, tol=0.0)


@pytest.mark.slow  # `test_scaffold.py` has a fast one
@pytest.mark.parametrize("case", ["s", "d"])
def test_it_converges_to_the_optimum(final_gradient, case):
    made = {"s": fedlesam_s(rho=1e-9, server_lr=1.0, **SGD), "d": fedlesam_d(rho=1e-9, alpha=1.0)}
    assert final_gradient(made[case]) < 1e-6


def test_optimizers_other_than_sgd_are_refused_by_its_own_name():
    with pytest.raises(ValueError, match=r"algorithm=fedlesam_s needs .*optimizer=sgd"):
        fedlesam_s(rho=RHO, server_lr=1.0, **{**SGD, "momentum": None})
