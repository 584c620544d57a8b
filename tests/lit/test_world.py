"""Every way to divide the work gives the numbers of one process; ranks are real processes."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.fedprox import fedprox
from flfast.algorithms.local import local
from flfast.algorithms.local_optimizer import average_optimizer, keep_optimizer
from flfast.datamodules.batches import RankShare
from flfast.datamodules.evaluation import EvaluationDataModule
from flfast.lit.world import deal
from flfast.plan import Batching

MOMENTUM = partial(torch.optim.SGD, momentum=0.9)
PLAIN = fedavg(weighting="samples")
# (sizes, options): ragged clients, fewer clients than ranks, B = infinity, accumulation, states.
PROBLEMS = [
    ([5, 11, 2, 8], {"batching": Batching(4)}),
    ([7, 3], {"batching": Batching(-1, micro_batch=2), "local_epochs": 2}),
    ([9, 4, 13, 1, 6], {"batching": Batching(2, accumulate=3), "sampling": {"fraction": 0.5}}),
    (
        [6, 5, 7],
        {"batching": Batching(3), "algorithm": keep_optimizer(PLAIN), "optimizer": MOMENTUM},
    ),
    (
        [6, 5, 7],
        {"batching": Batching(3), "algorithm": average_optimizer(PLAIN), "optimizer": MOMENTUM},
    ),
    ([8, 5, 6], {"batching": Batching(5), "algorithm": lambda w: local(initial=w)}),
]


def mlp():
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture
def solve(make_data, make_federation):
    """All problems with a given strategy: weights and numbers of every round."""

    def solve(world=None, **options):
        found = []
        for sizes, problem in PROBLEMS:
            data = make_data(sizes, split=(0.2, 0.2))
            extra = {"world": world} if world else {}
            federation = make_federation(data, mlp(), rounds=3, **{**problem, **options, **extra})
            federation.run()
            numbers = [
                {k: v for k, v in row.items() if "loss" in k or "accuracy" in k or "comm" in k}
                for row in federation.history
            ]
            weights = {name: w.numpy() for name, w in federation.weights().items()}
            found.append((weights, numbers))
        return found

    return solve


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "options"),
    [
        (2, {"strategy": "ddp", "shard": "clients"}),
        (2, {"strategy": "ddp", "shard": "batch"}),
        (3, {"strategy": "ddp", "shard": "clients"}),
        (2, {"strategy": "single"}),
        (2, {"strategy": "dp"}),
    ],
    ids=[
        "ddp2-clients",
        "ddp2-batch",
        "ddp3-clients",
        "single-in-a-world",
        "dp-in-a-world",
    ],
)
def test_every_division_of_the_work_gives_the_numbers_of_one_process(
    in_world, solve, size, options
):
    alone = solve()
    results = in_world(size, lambda world: solve(world, **options))
    for rank in range(size):
        assert_equal(results[rank], alone)


def assert_equal(found, expected):
    for (weights, numbers), (expected_weights, expected_numbers) in zip(
        found, expected, strict=True
    ):
        for name, value in expected_weights.items():
            np.testing.assert_allclose(weights[name], value, rtol=1e-5, atol=1e-6)
        for row, expected_row in zip(numbers, expected_numbers, strict=True):
            assert row == pytest.approx(expected_row, rel=1e-4, abs=1e-6, nan_ok=True)


def test_two_devices_of_one_process_give_the_numbers_of_one(solve):
    assert_equal(solve(strategy="dp"), solve())
    assert_equal(
        solve(strategy="dp", algorithm=fedprox(mu=0.5, weighting="uniform")),
        solve(algorithm=fedprox(mu=0.5, weighting="uniform")),
    )


def with_batchnorm():
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def test_frozen_batchnorm_is_frozen_everywhere(in_world, make_data, make_federation):
    def run(world=None, **options):
        extra = {"world": world} if world else {}
        federation = make_federation(
            make_data([6, 8]),
            with_batchnorm(),
            batching=Batching(4),
            freeze_batchnorm=True,
            **options,
            **extra,
        )
        federation.run()
        return {name: w.numpy() for name, w in federation.weights().items()}

    alone = run()
    ranks = in_world(2, lambda world: run(world, strategy="ddp", shard="batch"))
    for found in (run(strategy="dp"), *ranks.values()):
        for name, value in alone.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


def test_ranks_that_train_together_agree_on_batchnorm(in_world, make_data, make_federation):
    def run(world):
        federation = make_federation(
            make_data([8, 12]),
            with_batchnorm(),
            batching=Batching(4),
            strategy="ddp",
            shard="batch",
            world=world,
        )
        federation.run()
        return {name: w.numpy() for name, w in federation.weights().items()}

    first, second = in_world(2, run).values()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_true_precisions_leave_no_trace_in_the_process(make_data, make_federation):
    make_federation(make_data([6]), mlp(), strategy="dp", trainer={"precision": "64-true"}).run()
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_limited_personal_pass_measures_the_same_examples_in_any_world(make_data, size):
    data = make_data([7, 9, 5, 8], split=(0.3, 0.4))
    whole = EvaluationDataModule(data, ["personal", "val"], limit=2)
    shares = [RankShare(rank, size) for rank in range(size)]
    parts = [EvaluationDataModule(data, ["personal", "val"], limit=2, share=s) for s in shares]
    together = np.concatenate([part.indices for part in parts])
    assert sorted(together) == sorted(whole.indices)
    for name, part in parts[0].sets.items():
        assert sorted(together[part.positions]) == sorted(
            whole.indices[whole.sets[name].positions]
        )


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 5))
def test_the_longest_rank_has_little_more_than_its_share(costs, size):
    ranks = deal(costs, size)
    loads = [
        sum(c for c, r in zip(costs, ranks, strict=True) if r == rank) for rank in range(size)
    ]
    # Graham 1969: longest first is within 4/3 of the best, which is at least the mean.
    best = max(sum(costs) / size, max(costs, default=0))
    assert max(loads) <= 4 / 3 * best + max(costs, default=0) / 3 + 1e-9


@given(st.integers(0, 20), st.integers(1, 30), st.integers(1, 5))
def test_shares_of_a_batch_tile_it_and_average_to_its_mean(start, size, ranks):
    parts = [RankShare(rank, ranks).of((start, start + size)) for rank in range(ranks)]
    real = [(low, high) for low, high, factor in parts if factor]
    assert [low for low, _ in real] + [start + size] == [start] + [high for _, high in real]
    for low, high, factor in parts:
        assert high > low, "every rank must compute something"
        assert factor / ranks == pytest.approx((high - low) / size if factor else 0.0)
