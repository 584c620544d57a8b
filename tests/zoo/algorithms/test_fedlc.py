"""FedLC against its equation, its limit, and classes that a client lacks."""

import numpy as np
import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, run, server_of
from engine_runs import mlp
from references import averaged

from flfast.zoo.algorithms.fedlc import fedlc


def zhang(tau):
    """FedLC of Zhang et al. 2022."""

    def gradient(reference, k, w, step):
        counts = [reference.labels(k).count(c) or 1e-8 for c in range(3)]
        margins = np.array([tau / np.sqrt(np.sqrt(n)) for n in counts])
        return reference.gradient(w, step, margins=margins)

    return averaged(gradient)


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "tau"), [(-1, 1.0), (2, 0.3)])
def test_trajectories_follow_the_paper(assert_follows, batch_size, tau, sampling):
    """Client 2 has one example, so that it lacks two classes."""
    assert_follows(
        fedlc(tau=tau, weighting="samples"),
        zhang(tau),
        batch_size=batch_size,
        sampling=sampling,
        lr=0.3,
    )


def test_clients_with_equal_counts_train_as_in_fedavg(make_data, make_federation):
    """One margin for all classes cancels in the softmax."""

    def solve(name):
        federation = federation_of(
            make_data, make_federation, name, mlp(), sizes=(6, 3), rounds=2, local_epochs=2
        )
        return server_of(run(federation))

    assert_leaves_close(solve("fedlc"), solve("fedavg"))


def test_missing_classes_get_no_gradient(make_data, make_federation):
    """The only client has one example, of class 0."""
    federation = federation_of(make_data, make_federation, "fedlc", mlp(), sizes=(1,), lr=1.0)
    before = federation.initial["params"]["2.weight"].clone()
    after = server_of(run(federation))["2.weight"]
    torch.testing.assert_close(after, before.double(), rtol=0, atol=1e-12)
