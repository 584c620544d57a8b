"""FedASAM against its equations, its limit, and how often a step updates BatchNorm."""

import numpy as np
import pytest
from algorithms_by_name import federation_of, run
from engine_runs import with_batchnorm
from references import averaged

from flfast.zoo.algorithms.fedasam import fedasam


def caldarola(rho, eta):
    """Adaptive sharpness-aware local steps."""

    def gradient(reference, _, w, step):
        g, size = reference.gradient(w, step), abs(w) + eta
        return reference.gradient(w + rho * size**2 * g / np.linalg.norm(size * g), step)

    return averaged(gradient)


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 2])
def test_trajectories_follow_the_paper(assert_follows, batch_size, sampling):
    assert_follows(
        fedasam(rho=0.5, eta=0.2, weighting="samples"),
        caldarola(rho=0.5, eta=0.2),
        batch_size=batch_size,
        sampling=sampling,
        lr=0.3,
    )


def test_both_passes_of_a_step_update_batchnorm(make_data, make_federation):
    """Three local steps of one client."""
    federation = federation_of(
        make_data, make_federation, "fedasam", with_batchnorm(), sizes=(6,), local_epochs=3
    )
    assert int(run(federation).server["buffers"]["2.num_batches_tracked"]) == 6
