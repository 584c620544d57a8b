"""Sharing of clients, batches and passes among ranks; `test_invariance` compares results."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flfast.datamodules.batches import RankShare
from flfast.datamodules.evaluation_sets import EvaluationDataModule
from flfast.distributed.assignment import assign_clients
from flfast.state.plan import Batching


def mlp():
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def with_batchnorm():
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def test_ranks_that_share_batches_agree_on_batchnorm(in_world, make_data, make_federation):
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


def test_true_precisions_restore_the_default_dtype(make_data, make_federation):
    make_federation(make_data([6]), mlp(), strategy="dp", trainer={"precision": "64-true"}).run()
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_limited_personal_pass_measures_the_same_examples_in_any_world(make_data, size):
    data = make_data([7, 9, 5, 8], split=(0.3, 0.4))
    whole = EvaluationDataModule(data, ["personal", "val"], limit=2)
    shares = [RankShare(rank, size) for rank in range(size)]
    parts = [
        EvaluationDataModule(data, ["personal", "val"], limit=2, rank_share=s) for s in shares
    ]
    joined = np.concatenate([part.indices for part in parts])
    assert sorted(joined) == sorted(whole.indices)
    for name, part in parts[0].sets.items():
        assert sorted(joined[part.positions]) == sorted(whole.indices[whole.sets[name].positions])


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 5))
def test_the_makespan_is_within_grahams_bound(costs, size):
    ranks = assign_clients(costs, size)
    loads = [
        sum(c for c, r in zip(costs, ranks, strict=True) if r == rank) for rank in range(size)
    ]
    # Graham 1969: longest first is within 4/3 of the optimum, which is at least the mean load.
    optimum = max(sum(costs) / size, max(costs, default=0))
    assert max(loads) <= 4 / 3 * optimum + max(costs, default=0) / 3 + 1e-9


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 4)), max_size=30), st.integers(1, 5))
def test_clients_stay_at_home_unless_the_makespan_grows(clients, size):
    costs = [cost for cost, _ in clients]
    homes = [home % size for _, home in clients]

    def load(ranks, rank):
        return sum(cost for cost, r in zip(costs, ranks, strict=True) if r == rank)

    def makespan(ranks):
        return max(load(ranks, rank) for rank in range(size))

    ranks, free = assign_clients(costs, size, homes), assign_clients(costs, size)
    assert makespan(ranks) <= 1.05 * makespan(free)
    if makespan(homes) <= makespan(free):
        assert ranks == homes


def test_short_clients_leave_the_home_of_a_long_one():
    costs, homes = [12, *[1] * 8], [0, *[0, 1] * 4]
    ranks = assign_clients(costs, 2, homes)
    assert sum(cost for cost, rank in zip(costs, ranks, strict=True) if rank == 0) == 12


@given(st.integers(0, 20), st.integers(1, 30), st.integers(1, 5))
def test_rank_shares_partition_a_batch_and_average_to_its_mean(start, size, ranks):
    parts = [RankShare(rank, ranks).batch_part((start, start + size)) for rank in range(ranks)]
    real = [(low, high) for low, high, factor in parts if factor]
    assert [low for low, _ in real] + [start + size] == [start] + [high for _, high in real]
    for low, high, factor in parts:
        assert high > low, "every rank must compute something"
        assert factor / ranks == pytest.approx((high - low) / size if factor else 0.0)
