"""FedACG against its equations, and the cases in which it is FedProx or FedAvg."""

import numpy as np
import pytest
import torch
from algorithms_by_name import federation_of, run
from engine_runs import mlp

from flfast.state.plan import Batching
from flfast.zoo.algorithms.fedacg import fedacg


def kim(lam, beta, weighting):
    """Algorithm 1 of Kim et al. 2024."""

    def equations(reference, w, cohorts):
        m = np.zeros_like(w)
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                ahead = w + lam * m
                updates = [
                    reference.sgd(k, round_idx, ahead, change=lambda y, a=ahead: beta * (y - a))
                    - ahead
                    for k in cohort
                ]
                sizes = [reference.size(k) if weighting == "samples" else 1 for k in cohort]
                m = lam * m + np.average(updates, axis=0, weights=sizes)
                w = w + m
            yield w

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 2])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_trajectories_follow_the_paper(assert_follows, weighting, batch_size, sampling):
    assert_follows(
        fedacg(lam=0.85, beta=0.3, weighting=weighting),
        kim(0.85, 0.3, weighting),
        batch_size=batch_size,
        sampling=sampling,
        rounds=5,
    )


def test_the_lookahead_is_broadcast_and_the_servers_model_evaluated(make_data, make_federation):
    options = {"sizes": (7, 1, 4), "rounds": 3, "batching": Batching(3)}
    federation = federation_of(
        make_data, make_federation, "fedacg", mlp(), algorithm={"lam": 0.5}, **options
    )
    run(federation)
    server, momentum = federation.server["params"], federation.server["momentum"]
    sent = federation.algorithm.broadcast(federation.server)["params"]
    assert any(leaf.any() for leaf in momentum.values())
    for name, leaf in server.items():
        assert torch.equal(sent[name], leaf + 0.5 * momentum[name])
        assert torch.equal(federation.weights()[name], leaf)
    row = federation.history[-1]
    assert row["comm/up_bytes"] == row["comm/down_bytes"]
