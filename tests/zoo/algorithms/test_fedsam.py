"""FedSAM against its equations, its limit, and how often a step updates BatchNorm."""

import numpy as np
import pytest
import torch
from algorithms_by_name import federation_of, run, server_of
from engine_runs import mlp, with_batchnorm
from references import averaged

from flfast.zoo.algorithms.fedsam import fedsam


def caldarola(rho):
    """Sharpness-aware local steps."""

    def gradient(reference, _, w, step):
        g = reference.gradient(w, step)
        return reference.gradient(w + rho * g / np.sqrt(g @ g), step)

    return averaged(gradient)


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 2])
def test_trajectories_follow_the_paper(assert_follows, batch_size, sampling):
    assert_follows(
        fedsam(rho=0.5, weighting="samples"),
        caldarola(rho=0.5),
        batch_size=batch_size,
        sampling=sampling,
        lr=0.3,
    )


def test_both_passes_of_a_step_update_batchnorm(make_data, make_federation):
    """Three local steps of one client."""
    federation = federation_of(
        make_data, make_federation, "fedsam", with_batchnorm(), sizes=(6,), local_epochs=3
    )
    assert int(run(federation).server["buffers"]["2.num_batches_tracked"]) == 6


def test_a_gradient_of_zero_stays_finite(make_data, make_federation):
    """Inputs of zero and equal numbers of the classes: the gradient is zero at zero weights."""
    model = mlp()
    for p in model.parameters():
        p.data.zero_()
    data = {"inputs": torch.zeros(6, 5)}
    federation = federation_of(
        lambda sizes, **options: make_data(sizes, **data, num_test=0, split=options["split"]),
        make_federation,
        "fedsam",
        model,
        sizes=(6,),
    )
    for p in server_of(run(federation)).values():
        torch.testing.assert_close(p, torch.zeros_like(p))
