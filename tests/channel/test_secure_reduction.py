"""The mean of masked uploads is the plain one, for every kind of part; runs do not notice."""

import logging
from dataclasses import replace

import pytest
import torch
from algorithms_by_name import federation_of
from engine_runs import mlp, with_batchnorm
from sampling import others_slow

from flfast.algorithms.contract.uploads import Part
from flfast.algorithms.fedavg import fedavg
from flfast.channel.aggregations.aggregation import MEAN
from flfast.channel.channel import Channel
from flfast.channel.faults.simulated import simulated
from flfast.channel.reduction import reduction_for
from flfast.channel.secure.masks import masks
from flfast.channel.secure_reduction import secure_reduction
from flfast.distributed.world import ALONE

SECURE = masks(
    bits=32, max_change=4.0, precision=1e-6, max_weight=1000.0, threshold=0.4, neighbors=None
)
LOST = simulated(lost=0.3, broken=0.0, corruption="any")
SEED = 0
"""Of faults: some clients are lost, and enough arrive."""
PARTS = {
    "steps": Part(learned=False),
    "sums": Part("sum", over="counts"),
    "counts": Part("sum", learned=False),
    "mine": Part(over="members"),
    "members": Part(learned=False),
}


def upload(seed):
    """All kinds of parts; BatchNorm's counter among the buffers."""
    rng = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(shape, generator=rng)  # noqa: E731
    members = torch.tensor([seed % 2, 1.0])
    return {
        "params": {"w": normal(3, 2), "b": normal(2)},
        "buffers": {"mean": normal(2), "num": torch.tensor(100 + 7 * seed)},
        "steps": torch.tensor(5.0 + seed, dtype=torch.float64),
        "sums": 1000 * normal(3, 2),
        "counts": torch.tensor([3.0, 0.0, seed], dtype=torch.float64),
        "mine": {"w": 50 * normal(2, 3) * members[:, None]},
        "members": members,
    }


def secured(cohort, *, path=(1, 0), channel=None):
    channel = channel or Channel(secure=SECURE)
    algorithm = replace(fedavg(weighting="samples"), parts=PARTS)
    return secure_reduction(channel, algorithm, cohort, path)


@pytest.mark.parametrize("arrived", [(0, 1, 2, 3, 4), (4, 1, 3)])
def test_every_kind_of_part_is_reduced_as_without_masks(arrived):
    plain, secure = reduction_for(MEAN, range(5), PARTS), secured(range(5))
    for k in arrived:
        for reduction in (plain, secure):
            reduction.add(k, upload(k), weight=float(37 * k + 5))
    found, expected = secure.combine(ALONE), plain.combine(ALONE)
    # The largest weight is 1000, and these are about 100: the error grows tenfold.
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-6, atol=2e-6)
    assert found.weights.tolist() == []
    assert list(found.mean) == list(upload(0))


def test_the_calls_of_a_round_have_masks_of_their_own(make_data, make_federation):
    paths = []

    def make_round(cohort, seed, path):
        paths.append(path)
        return SECURE.make_round(cohort, seed, path)

    federation = federation_of(make_data, make_federation, "mime", mlp(), rounds=2)
    federation.engine.channel = Channel(secure=replace(SECURE, make_round=make_round))
    federation.run()
    assert paths == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_too_few_uploads_are_no_mean_and_say_so():
    secure = secured(range(5))
    assert secure.combine(ALONE)[:3] == (None, frozenset(), "")
    secure.add(2, upload(2), weight=1.0)
    shortage = "1 of 5 uploads arrived; 2 are needed to remove the masks"
    assert secure.combine(ALONE)[:3] == (None, frozenset(), shortage)


def test_what_cannot_be_added_is_an_error_or_a_warning(caplog):
    secure = secured(range(2))
    with pytest.raises(ValueError, match=r"=1000: client 0 weighs 1001; allowed: secure"):
        secure.add(0, upload(0), weight=1001.0)
    secure.add(0, upload(0), weight=1000.0)
    with pytest.raises(ValueError, match="client 1"):
        secure.add(1, {"params": upload(1)["params"]}, weight=1.0)
    large = upload(1)
    large["params"]["w"] += 100.0
    secure.add(1, large, weight=1000.0)
    with caplog.at_level(logging.WARNING):
        secure.combine(ALONE)
    assert "secure.max_change: 6 of 20 elements of the cohort's changes" in caplog.text


def test_the_reduction_holds_masked_numbers_only():
    """What the server adds up says nothing of two uploads, before the masks are removed."""
    secure = secured(range(4))
    for k in (0, 1):
        secure.add(k, upload(k), weight=10.0)
    plain = sum(0.01 * upload(k)["params"]["w"] for k in (0, 1)).flatten()
    decoded = secure.secure.terms.numbers.decode(secure.total.numpy().view("uint64"))
    assert (torch.from_numpy(decoded[:6]) - plain).abs().min() > 1e-3


# BatchNorm, control variates, personal models, fractional counts, ratios, sums, and two calls.
RUNS = {
    "fedavg": with_batchnorm,
    "scaffold": mlp,
    "ditto": mlp,
    "fednova": mlp,
    "ifca": mlp,
    "fedproto": mlp,
    "mime": mlp,
}


@pytest.mark.parametrize("name", others_slow(RUNS, RUNS.keys() - {"mime"}))
def test_a_run_is_the_same_with_secure_aggregation(make_data, make_federation, name):
    def run(secure):
        federation = federation_of(
            make_data, make_federation, name, RUNS[name](), sizes=(6, 3, 5, 4), rounds=2
        )
        federation.engine.channel = Channel(seed=SEED, faults=LOST, secure=secure)
        federation.run()
        return federation

    plain, secure = run(Channel().secure), run(SECURE)
    torch.testing.assert_close(secure.server, plain.server, rtol=1e-5, atol=1e-5)
    dropped = [row["cohort/dropped"] for row in secure.history[1:]]
    assert dropped == [row["cohort/dropped"] for row in plain.history[1:]]
    assert sum(dropped) > 0
