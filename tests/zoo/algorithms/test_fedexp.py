"""FedExP against its equations, and the cases in which it equals FedAvg."""

import numpy as np
import pytest
import torch
from adversaries import ROBUST
from sampling import others_slow

from flfast.algorithms.fedavg import fedavg
from flfast.channel.channel import Channel
from flfast.channel.sides import ClientSide
from flfast.state.plan import Batching
from flfast.zoo.algorithms.fedexp import fedexp


def make(epsilon=0.001, weighting="uniform"):
    return fedexp(epsilon=epsilon, weighting=weighting, clip_norm=None)


def jhunjhunwala(epsilon, weighting, steps):
    """Algorithm 1 of Jhunjhunwala et al. 2023; appends the server learning rates to `steps`."""

    def equations(reference, w, cohorts):
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                updates = [reference.sgd(k, round_idx, w) - w for k in cohort]
                sizes = [reference.size(k) if weighting == "samples" else 1 for k in cohort]
                mean = np.average(updates, axis=0, weights=sizes)
                squares = np.average([d @ d for d in updates], weights=sizes)
                steps.append(max(1.0, squares / (2 * (mean @ mean + epsilon))))
                w = w + steps[-1] * mean
            yield w

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.8, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("batch_size", [-1, 2])
def test_trajectories_follow_the_paper(assert_follows, batch_size, weighting, sampling):
    steps = []
    assert_follows(
        make(0.001, weighting),
        jhunjhunwala(0.001, weighting, steps),
        batch_size=batch_size,
        sampling=sampling,
        sizes=(2, 5, 1, 3, 1, 4),
        rounds=6,
    )
    assert max(steps) > 1, "the server never extrapolated"


def test_one_client_is_not_extrapolated(assert_follows):
    """One update agrees with itself: eta_g = max(1, 1 / 2)."""

    def plain(reference, w, cohorts):
        for round_idx in range(1, len(cohorts) + 1):
            w = reference.sgd(0, round_idx, w)
            yield w

    assert_follows(make(), plain, sizes=(8,))


def test_the_norm_of_an_update_is_a_count(make_data, make_federation):
    """Eight bytes more than FedAvg sends, for each client."""
    sent = []
    for algorithm in (fedavg(weighting="uniform"), make()):
        federation = make_federation(make_data((4, 6)), algorithm=algorithm)
        federation.run()
        sent.append(federation.history[1]["comm/up_bytes"])
    assert sent[1] == sent[0] + 2 * 8


def inflated(client, result, upload, sender, *, protect=ClientSide.protect):
    """The last client claims a norm that is too large by a factor of a million."""
    factor = 1e6 if sender.client_id == 6 else 1
    return protect(client, result, {**upload, "length": factor * upload["length"]}, sender)


@pytest.mark.parametrize(
    "name", others_slow(sorted(ROBUST.keys() - {"krum"}), ["median", "multi_krum"])
)
def test_robust_rules_ignore_one_inflated_norm(name, make_data, make_federation, monkeypatch):
    """Clients with the same examples agree, so eta_g = 1. Krum takes one client's claim."""
    examples = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    data = make_data((6,) * 7, inputs=examples.repeat(7, 1))

    def solve(channel):
        federation = make_federation(data, algorithm=make(), batching=Batching(-1))
        federation.engine.channel = channel
        federation.run()
        return federation.weights()

    honest = solve(Channel())
    monkeypatch.setattr(ClientSide, "protect", inflated)
    torch.testing.assert_close(solve(Channel(aggregation=ROBUST[name])), honest)
    assert not torch.allclose(solve(Channel())["weight"], honest["weight"])


def test_clipped_uploads_are_refused():
    with pytest.raises(ValueError, match="use upload_clip_norm=null"):
        fedexp(epsilon=0.001, weighting="uniform", clip_norm=2.0)
