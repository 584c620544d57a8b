import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.datamodules.batches import EvalLoader, RankShare, TrainLoader, local_epoch
from flfast.state.plan import Batching, batch_limit

batchings = st.builds(
    Batching,
    batch_size=st.one_of(st.just(-1), st.integers(1, 12)),
    accumulate=st.integers(1, 4),
    micro_batch=st.one_of(st.none(), st.integers(1, 12)),
    last_batch=st.sampled_from(["keep", "drop", "pad"]),
    drop_single=st.booleans(),
    limit=st.one_of(st.just(1.0), st.floats(0.01, 1.0), st.integers(1, 5)),
)


def step_of(batching, num):
    return num if batching.batch_size == -1 else batching.batch_size * batching.accumulate


@given(st.integers(1, 60), batchings)
def test_batches_tile_the_epoch_and_respect_the_memory_bound(num, batching):
    epoch = local_epoch(num, batching)
    assert epoch.num_examples >= 1
    assert [0, *(stop for _, stop in epoch.bounds)] == [
        *(start for start, _ in epoch.bounds),
        epoch.num_examples,
    ]
    batch = batching.batch_size if batching.batch_size > 0 else max(num, 1)
    most = min(batch, batching.micro_batch or batch)
    assert all(0 < stop - start <= most for start, stop in epoch.bounds)


@given(st.integers(1, 60), batchings)
def test_scaled_batches_add_up_to_the_mean_of_their_step(num, batching):
    """scale / accumulate must be each batch's share of its local step."""
    epoch, step = local_epoch(num, batching), step_of(batching, num)
    shares: dict[int, float] = {}
    for (start, stop), scale in zip(epoch.bounds, epoch.scales, strict=True):
        size = min(step, epoch.num_examples - start // step * step)
        assert scale / epoch.accumulate == pytest.approx((stop - start) / size)
        shares[start // step] = shares.get(start // step, 0) + scale / epoch.accumulate
    assert len(shares) == epoch.num_steps
    assert all(share == pytest.approx(1) for share in shares.values())


@given(st.integers(1, 60), batchings)
def test_lightning_steps_where_a_local_step_ends(num, batching):
    """Lightning steps after every `accumulate` batches and after the last one."""
    epoch, step = local_epoch(num, batching), step_of(batching, num)
    ends = {
        stop
        for i, (_, stop) in enumerate(epoch.bounds, start=1)
        if i % epoch.accumulate == 0 or i == len(epoch.bounds)
    }
    assert ends == {min((i + 1) * step, epoch.num_examples) for i in range(epoch.num_steps)}


def test_last_batch_policies():
    sizes = {
        policy: [b - a for a, b in local_epoch(25, Batching(10, last_batch=policy)).bounds]
        for policy in ("keep", "drop", "pad")
    }
    assert sizes == {"keep": [10, 10, 5], "drop": [10, 10], "pad": [10, 10, 10]}


def test_limits_are_a_number_or_a_share_of_batches():
    def sizes(limit, **options):
        batching = Batching(10, limit=limit, **options)
        return [b - a for a, b in local_epoch(35, batching).bounds]

    assert sizes(2) == [10, 10]
    assert sizes(0.5) == [10, 10]
    assert sizes(0.01) == [10]
    assert sizes(99) == sizes(batch_limit(1.0)) == [10, 10, 10, 5]
    assert sizes(batch_limit(1.0), last_batch="pad") == [10, 10, 10, 10]
    assert sizes(batch_limit(1), micro_batch=4) == [3, 3, 4]


def test_a_client_smaller_than_a_batch_trains_on_what_it_has():
    assert local_epoch(3, Batching(10, last_batch="drop")).bounds == [(0, 3)]


def test_batchnorm_never_sees_a_last_step_of_one_example():
    assert local_epoch(21, Batching(10, drop_single=True)).num_examples == 20
    assert local_epoch(31, Batching(10, accumulate=2, drop_single=True)).num_examples == 31
    assert local_epoch(3, Batching(9, micro_batch=2, drop_single=True)).bounds == [(0, 2)]
    assert local_epoch(1, Batching(10, drop_single=True)).num_examples == 1


def from_memory(batches):
    for indices in batches:
        yield indices, indices


def test_every_epoch_is_shuffled_anew_and_padding_repeats_its_beginning():
    def shuffle(epoch, num):
        return np.random.default_rng(epoch).permutation(num)

    indices = np.arange(100, 105)
    loader = TrainLoader(
        from_memory, indices, local_epoch(5, Batching(4, last_batch="pad")), shuffle
    )
    first, second = (np.concatenate([batch.inputs for batch in loader]) for _ in range(2))
    assert set(first[:5]) == set(second[:5]) == set(indices)
    assert not np.array_equal(first, second)
    assert np.array_equal(first[5:], first[:3])


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(1, 4), st.integers(1, 2))
def test_personal_batches_say_whose_every_example_is(sizes, batch_size, ranks):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    indices = np.arange(len(owner))
    for rank in range(ranks):
        share = RankShare(rank, ranks)
        loader = EvalLoader(
            from_memory, indices, batch_size=batch_size, owner=owner, rank_share=share
        )
        batches = list(loader)
        assert len(batches) == len(loader)
        for batch in batches:
            assert np.array_equal(
                owner[batch.inputs], np.repeat(*np.array(batch.owners, dtype=int).T)
            )
            assert len(batch.inputs) <= batch_size
            assert ranks == 1 or len(batch.owners) == 1, "ranks predict with one model at a time"
        if ranks == 1:
            seen = np.concatenate([b.inputs for b in batches] or [np.zeros(0, int)])
            assert np.array_equal(seen, indices)
