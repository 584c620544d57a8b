"""FedDisco against its equation and its limits."""

from math import log

import numpy as np
import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, run, server_of
from engine_runs import mlp

from flfast.algorithms.fedavg import fedavg
from flfast.state.plan import Batching
from flfast.zoo.algorithms.feddisco import feddisco


def divergence(reference, k):
    """KL divergence of a client's label distribution from the uniform one."""
    indices = reference.data.train_clients.indices_of(k)
    labels = reference.data.examples.targets[indices].tolist()
    shares = [labels.count(c) / len(labels) for c in range(3)]
    return sum(share * log(3 * share) for share in shares if share)


def ye(a, b):
    """FedDisco of Ye et al. 2023."""

    def equations(reference, w, cohorts):
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                sizes = np.array([reference.size(k) for k in cohort])
                distances = np.array([divergence(reference, k) for k in cohort])
                shares = sizes / sizes.sum() - a * distances / (distances.sum() or 1) + b
                shares = np.maximum(shares, 1e-9 * sizes / sizes.sum())
                models = [reference.sgd(k, round_idx, w) for k in cohort]
                w = np.average(models, axis=0, weights=shares)
            yield w

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "a", "b"), [(-1, 0.5, 0.1), (2, 0.2, 0.0), (2, 2.0, 0.3)])
def test_trajectories_follow_the_paper(assert_follows, batch_size, a, b, sampling):
    """With a = 0.5, the weight of client 2 would be negative: it has one example."""
    assert_follows(
        feddisco(a=a, b=b),
        ye(a, b),
        sizes=(3, 8, 1, 6, 2),
        batch_size=batch_size,
        sampling=sampling,
    )


def test_weights_are_those_of_the_authors_code_from_round_1_on(make_data, make_federation):
    """Worked out by hand: 6 and 2 examples of 3 classes, KL 0 and log(3 / 2)."""
    federation = make_federation(
        make_data((6, 2)), algorithm=feddisco(a=0.5, b=0.5), rounds=2, batching=Batching(-1)
    )
    seen, weigh = [], federation.algorithm.weighting
    object.__setattr__(
        federation.algorithm, "weighting", lambda *args: seen.append(weigh(*args)) or seen[-1]
    )
    federation.run()
    assert seen == pytest.approx(2 * [6 / 8 + 0.5, 2 / 8 - 0.5 + 0.5])
    sums = federation.server["sums"]
    assert float(sums["examples"]) == 8
    assert float(sums["discrepancy"]) == pytest.approx(log(3 / 2))


def test_with_uniform_labels_and_b_zero_it_is_fedavg(make_data, make_federation):
    """All discrepancies are zero, and so is their sum."""
    options = {"sizes": (3, 6), "rounds": 3, "batching": Batching(3)}
    found = [
        run(federation_of(make_data, make_federation, name, mlp(), algorithm=own, **options))
        for name, own in (("feddisco", {"a": 0.5, "b": 0.0}), ("fedavg", {}))
    ]
    assert_leaves_close(*map(server_of, found))


def test_a_cohort_of_distant_clients_keeps_its_weights_positive(make_data, make_federation):
    """Every weight would be negative; the floor makes them proportional to the sizes."""

    def solve(algorithm):
        federation = make_federation(
            make_data((2, 1)),
            algorithm=algorithm,
            rounds=3,
            batching=Batching(-1),
            trainer={"precision": "64-true"},
        )
        federation.run()
        return federation.weights()

    expected = solve(fedavg(weighting="samples"))
    torch.testing.assert_close(solve(feddisco(a=1e6, b=0.0)), expected)
