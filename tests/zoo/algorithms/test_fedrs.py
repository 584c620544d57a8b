"""FedRS against its equation and its limits."""

import numpy as np
import pytest
from algorithms_by_name import assert_leaves_close, federation_of, run, server_of
from engine_runs import mlp
from references import averaged

from flfast.state.plan import Batching
from flfast.zoo.algorithms.fedrs import fedrs


def li(alpha):
    """FedRS of Li and Zhan 2021."""

    def gradient(reference, k, w, step):
        factors = np.array([1.0 if c in reference.labels(k) else alpha for c in range(3)])
        return reference.gradient(w, step, factors=factors)

    return averaged(gradient)


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "alpha"), [(-1, 0.5), (2, 0.1)])
def test_trajectories_follow_the_paper(assert_follows, batch_size, alpha, sampling):
    """Clients 1, 2 and 4 lack one or two of the three classes."""
    assert_follows(
        fedrs(alpha=alpha, weighting="samples"),
        li(alpha),
        sizes=(3, 2, 1, 6, 2),
        batch_size=batch_size,
        sampling=sampling,
        lr=0.3,
    )


def test_clients_with_all_classes_train_as_in_fedavg(make_data, make_federation):
    options = {"sizes": (7, 4), "rounds": 3, "batching": Batching(3)}
    fedavg, fedrs = (
        server_of(run(federation_of(make_data, make_federation, name, mlp(), **options)))
        for name in ("fedavg", "fedrs")
    )
    assert_leaves_close(fedrs, fedavg)
