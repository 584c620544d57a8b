import numpy as np
import pytest

from flfast.datamodules.partitions.shards import shards


def split(labels, num_clients, shards_per_client, *, min_samples=1, seed=0):
    return shards(
        labels,
        num_clients=num_clients,
        shards_per_client=shards_per_client,
        min_samples=min_samples,
        rng=np.random.default_rng(seed),
    )


def test_two_shards_of_one_class_each_give_at_most_two_classes():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    owner = split(labels, 100, 2)  # 200 shards of 30, so that none crosses a class
    assert (np.bincount(owner) == 60).all()
    assert max(len(set(labels[owner == client])) for client in range(100)) == 2


def test_shards_that_do_not_tile_the_data_differ_by_at_most_one():
    owner = split(np.arange(103) % 4, 5, 4)  # 20 shards of 5 or 6
    sizes = np.bincount(owner)
    assert sizes.sum() == 103
    assert sizes.min() >= 20
    assert sizes.max() <= 24


def test_a_minimum_that_unlucky_clients_miss_is_refused_whatever_the_seed():
    # 20 shards of 370 examples: two of 18 make 36.
    for seed in range(5):
        with pytest.raises(ValueError, match=r"min_samples=37 cannot be met: 20 shards .* 36"):
            split(np.zeros(370, dtype=int), 10, 2, min_samples=37, seed=seed)


def test_clients_get_random_examples_of_a_class():
    labels = np.zeros(100, dtype=int)
    assert (split(labels, 2, 1) != split(labels, 2, 1, seed=1)).any()
    assert len(set(split(labels, 2, 1)[:50])) == 2
