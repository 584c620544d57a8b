from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset

from flfast.datamodules.examples import Examples, group_by_client
from flfast.datamodules.partitions.dirichlet import dirichlet
from flfast.datamodules.partitions.iid import iid
from flfast.datamodules.partitions.natural import natural
from flfast.datamodules.partitions.pathological import pathological
from flfast.datamodules.partitions.quantity import quantity
from flfast.datamodules.partitions.shards import shards
from flfast.datamodules.splits import (
    Split,
    few_of_each_class,
    hold_out,
    split_clients,
    split_examples,
)
from flfast.datamodules.transforms import BatchTransform
from flfast.state.randomness import generator
from flfast.zoo.datamodules.partitions.from_file import from_file
from flfast.zoo.datamodules.partitions.inner_dirichlet import inner_dirichlet
from flfast.zoo.datamodules.partitions.semantic import semantic

owners = st.lists(st.integers(0, 4), min_size=1, max_size=60)


@given(owners, st.floats(0, 0.6), st.floats(0, 0.39), st.integers(0, 9))
def test_splits_hold_every_example_once_and_leave_one_to_train(owner, val, test, seed):
    owner = np.array(owner)
    indices = np.arange(len(owner)) * 3
    splits = split_clients(
        indices,
        owner,
        num_clients=5,
        fractions={"test": test, "val": val},
        place=np.random.default_rng(seed).random(len(owner)),
    )
    together = np.concatenate([split.indices for split in splits.values()])
    assert np.array_equal(np.sort(together), indices)
    sizes = np.bincount(owner, minlength=5)
    for client in range(5):
        for split in splits.values():
            assert (owner[split.indices_of(client) // 3] == client).all()
        assert len(splits["train"].indices_of(client)) >= min(1, sizes[client])
        assert abs(len(splits["test"].indices_of(client)) - test * sizes[client]) <= 1


@given(owners, st.integers(1, 4), st.data())
def test_few_examples_of_each_class_are_the_first_ones(owner, most, data):
    owner = np.array(owner)
    labels = np.array(data.draw(st.lists(st.integers(-2, 2), min_size=60, max_size=60)))
    indices = np.random.default_rng(0).permutation(60)[: len(owner)]
    split = group_by_client(indices, owner, 5)
    kept = few_of_each_class(split, labels, most=most)
    for client in range(5):
        own = split.indices_of(client)
        first = [i for p, i in enumerate(own) if (labels[own[:p]] == labels[i]).sum() < most]
        assert kept.indices_of(client).tolist() == first


def test_a_fraction_per_client():
    splits = split_clients(
        np.arange(20),
        np.repeat([0, 1], 10),
        num_clients=2,
        fractions={"test": np.array([0.0, 0.5])},
        place=np.random.default_rng(0).random(20),
    )
    assert [len(splits["test"].indices_of(k)) for k in (0, 1)] == [0, 5]


def test_grouping_keeps_the_order_within_a_client():
    grouped = group_by_client(np.array([9, 8, 7, 6]), np.array([1, 0, 1, 0]), 3)
    assert [grouped.indices_of(k).tolist() for k in range(3)] == [[8, 6], [9, 7], []]
    assert grouped.owner().tolist() == [0, 0, 1, 1]
    assert grouped.pooled().indices_of(0).tolist() == [8, 6, 9, 7]


@given(st.integers(2, 60), st.one_of(st.integers(0, 1), st.floats(0, 0.9)), st.integers(0, 9))
def test_clients_are_held_out_or_members_by_the_seed_alone(num_clients, holdout, seed):
    def held(seed):
        return hold_out(num_clients, holdout, np.random.default_rng(seed))

    try:
        held_out, members = held(seed)
    except ValueError:
        assert round(holdout * num_clients) == num_clients
        return
    assert np.array_equal(np.sort(np.concatenate([held_out, members])), np.arange(num_clients))
    number = holdout if isinstance(holdout, int) else max(round(holdout * num_clients), 1)
    assert len(held_out) == (number if holdout else 0)
    assert all(map(np.array_equal, held(seed), (held_out, members)))


@pytest.mark.parametrize("holdout", [5, 9, 0.95])
def test_somebody_is_left_to_train(holdout):
    with pytest.raises(ValueError, match=r"leaves none of 5 clients to train; allowed: 0 to 4"):
        hold_out(5, holdout, np.random.default_rng(0))


@given(owners, st.sets(st.integers(0, 4), min_size=1))
def test_only_some_clients_entries(owner, clients):
    whole = group_by_client(np.arange(len(owner)), np.array(owner), 5)
    some = whole.only(np.array(sorted(clients)))
    for client in range(5):
        expected = whole.indices_of(client) if client in clients else []
        assert np.array_equal(some.indices_of(client), expected)


SIZE = {"num_clients": 4, "min_samples": 2}
PARTITIONS = {
    "iid": partial(iid, **SIZE),
    "dirichlet": partial(dirichlet, alpha=0.3, balanced=False, **SIZE),
    "quantity": partial(quantity, alpha=0.5, **SIZE),
    "shards": partial(shards, shards_per_client=2, **SIZE),
    "pathological": partial(pathological, classes_per_client=2, **SIZE),
    "natural": partial(natural, group_size=1, rest="smaller"),
    "pairs": partial(natural, group_size=2, rest="smaller"),
    "inner_dirichlet": partial(
        inner_dirichlet, alpha=0.3, sizes="linear", sigma=0.5, within_owners=False, **SIZE
    ),
    "semantic": partial(semantic, components=2, **SIZE),
}


def examples_of(num, num_test, owner=None):
    total = num + num_test
    return Examples(
        inputs=torch.zeros(total, 1),
        targets=torch.arange(total) % 3,
        num_classes=3,
        input_shape=(1,),
        transform=BatchTransform(),
        is_test=np.arange(total) % (total // num_test) == 0 if num_test else None,
        owner=np.arange(total) % 4 if owner is None else owner,
    )


@given(
    st.sampled_from(sorted(PARTITIONS)),
    st.integers(60, 90),
    st.integers(0, 6),
    st.integers(0, 25),
    st.integers(0, 99),
    st.sampled_from([None, 1]),
)
def test_the_server_has_its_number_of_training_examples_and_no_client_has_one_of_them(
    name, num, num_test, num_server, seed, few_shot
):
    examples = examples_of(num, num_test)
    split = partial(Split, 0.1, 0.2, few_shot=few_shot)

    def made(num_server, seed=seed):
        chosen = split(server_examples=num_server)
        return split_examples(examples, PARTITIONS[name], seed=seed, split=chosen)

    splits, central, server = made(num_server)[:3]
    of_clients = np.concatenate([part.indices for part in splits.values()])
    assert len(np.unique(server)) == len(server) == num_server
    given_to_test = np.flatnonzero(examples.is_test) if num_test else []
    assert not np.isin(server, given_to_test).any()
    together = np.concatenate([of_clients, central, server])
    assert len(np.unique(together)) == len(together)
    assert few_shot or len(together) == len(examples.targets)
    assert np.array_equal(made(num_server)[2], server)
    if num_server > 5:
        assert not np.array_equal(made(num_server, seed + 1)[2], server)


def test_without_examples_of_the_server_partitions_are_what_they_were():
    examples = examples_of(60, 0)
    found = split_examples(examples, PARTITIONS["iid"], seed=3, split=Split(0.0, 0.0))
    owner = PARTITIONS["iid"](60, rng=generator(3, "partition"))
    assert len(found.server) == 0
    for client in range(4):
        own = np.sort(found.splits["train"].indices_of(client))
        assert np.array_equal(own, np.flatnonzero(owner == client))


@pytest.mark.parametrize("num_server", [60, 1000])
def test_the_server_leaves_an_example_to_the_clients(num_server):
    split = Split(0.0, 0.0, server_examples=num_server)
    message = rf"server_examples={num_server} leaves none of 60 .*allowed: 0 to 59"
    with pytest.raises(ValueError, match=message):
        split_examples(examples_of(60, 0), PARTITIONS["natural"], seed=0, split=split)


@pytest.mark.parametrize("lost", [0, 3])
def test_a_client_of_the_dataset_without_an_example_left_is_an_error(lost):
    """Also the last one, without which clients would only seem to be fewer."""
    owner = np.repeat(np.delete(np.arange(4), lost), 20)
    owner[7] = lost
    found = None
    for seed in range(200):
        split = Split(0.0, 0.0, server_examples=30)
        try:
            server = split_examples(
                examples_of(60, 0, owner), PARTITIONS["natural"], seed=seed, split=split
            ).server
        except ValueError as error:
            found = str(error)
            break
        assert 7 not in server
    assert found == (
        f"split.server_examples=30 leaves no training example to client {lost}; "
        f"allowed: fewer, or another partition"
    )


def split_of(examples, partition, *, seed=0, few_shot=None, server_examples=0):
    split = Split(0.1, 0.2, few_shot=few_shot, server_examples=server_examples)
    return split_examples(examples, partition, seed=seed, split=split)


@given(st.integers(1, 5), st.sampled_from(["smaller", "larger"]), st.integers(1, 6))
def test_test_examples_go_with_their_owner_if_the_partition_leaves_owners_whole(
    group_size, rest, num_test
):
    examples = examples_of(60, num_test)
    found = split_of(examples, partial(natural, group_size=group_size, rest=rest))
    is_test = examples.is_test
    client_of = dict(zip(examples.owner[~is_test], found.owner, strict=True))
    assert len(found.central_test) == 0
    for index in np.flatnonzero(is_test):
        own = found.splits["test"].indices_of(client_of[examples.owner[index]])
        assert index in own


def test_test_examples_of_owners_that_are_divided_are_central():
    examples = examples_of(60, 6)
    assert np.array_equal(
        split_of(examples, PARTITIONS["iid"]).central_test, np.flatnonzero(examples.is_test)
    )


@given(st.sampled_from(sorted(PARTITIONS)), st.integers(0, 9), st.integers(0, 6))
def test_a_partition_that_was_written_is_read_again(tmp_path_factory, name, seed, num_server):
    examples = examples_of(80, 5)
    first = split_of(examples, PARTITIONS[name], seed=seed, server_examples=num_server)
    path = tmp_path_factory.getbasetemp() / "partition.npz"
    np.savez(path, owner=first.owner, digest=np.array(first.digest))
    again = split_of(
        examples, partial(from_file, path=str(path)), seed=seed, server_examples=num_server
    )
    for part in ("train", "val", "test"):
        assert all(map(np.array_equal, first.splits[part], again.splits[part]))
    assert np.array_equal(first.central_test, again.central_test)
    other = replace(examples, targets=(examples.targets + 1) % 3)
    with pytest.raises(ValueError, match=r"partition.path=.* is of other data, whose targets"):
        split_of(other, partial(from_file, path=str(path)), seed=seed, server_examples=num_server)


def without_labels():
    return replace(examples_of(60, 0), targets=torch.rand(60, 3), task="regression")


@pytest.mark.parametrize("name", ["iid", "quantity", "natural", "pairs"])
def test_partitions_that_need_no_labels_divide_data_of_any_task(name):
    found = split_of(without_labels(), PARTITIONS[name])
    assert np.array_equal(found.owner, split_of(examples_of(60, 0), PARTITIONS[name]).owner)


def test_partitions_by_label_are_refused_for_data_without_labels():
    message = (
        r"partition=dirichlet with task=regression: the examples have no labels; "
        r"allowed: partitions that need none, such as partition=iid"
    )
    with pytest.raises(ValueError, match=message):
        split_of(without_labels(), PARTITIONS["dirichlet"])
    with pytest.raises(
        ValueError, match=r"split.few_shot=2 with task=regression: .* allowed: null"
    ):
        split_of(without_labels(), PARTITIONS["iid"], few_shot=2)


def test_labels_beside_the_targets_are_divided_by():
    given_labels = replace(without_labels(), labels=torch.arange(60) % 3)
    found = split_of(given_labels, PARTITIONS["dirichlet"])
    assert np.array_equal(found.owner, split_of(examples_of(60, 0), PARTITIONS["dirichlet"]).owner)


class Halves(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        return torch.full((1, 2), float(index >= 30))


@pytest.mark.parametrize("stored", ["memory", "dataset"])
def test_inputs_are_compared_wherever_they_are(stored):
    images = Halves()
    inputs = images if stored == "dataset" else torch.stack([images[i] for i in range(60)])
    examples = replace(examples_of(60, 0), inputs=inputs)
    partition = partial(semantic, num_clients=2, components=5, min_samples=1)
    owner = split_of(examples, partition).owner
    assert len(set(owner[:30])) == len(set(owner[30:])) == 1
    assert owner[0] != owner[59]


def test_tokens_are_not_compared():
    examples = replace(examples_of(60, 0), inputs=torch.zeros(60, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"compares inputs, .* torch.int64, such as tokens"):
        split_of(examples, PARTITIONS["semantic"])
