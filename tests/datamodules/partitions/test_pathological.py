import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.datamodules.partitions.pathological import pathological


def split(labels, num_clients, classes_per_client, *, min_samples=1, seed=0):
    """Counts [K, C]."""
    owner = pathological(
        labels,
        num_clients=num_clients,
        classes_per_client=classes_per_client,
        min_samples=min_samples,
        rng=np.random.default_rng(seed),
    )
    counts = np.zeros((num_clients, labels.max() + 1), dtype=int)
    np.add.at(counts, (owner, labels), 1)
    return counts


@pytest.mark.parametrize(
    ("num_clients", "num_classes", "classes_per_client"),
    [(15, 10, 3), (7, 10, 2), (50, 100, 2), (20, 10, 2), (10, 10, 10), (1, 10, 10)],
)
def test_every_client_holds_just_as_many_classes_and_no_example_is_lost(
    num_clients, num_classes, classes_per_client
):
    counts = split(np.repeat(np.arange(num_classes), 100), num_clients, classes_per_client)
    assert (np.count_nonzero(counts, axis=1) == classes_per_client).all()
    assert (counts.sum(axis=0) == 100).all()


@given(
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=20),
    num_clients=st.integers(1, 40),
    classes_per_client=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_no_client_ever_exceeds_its_classes(sizes, num_clients, classes_per_client, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    try:
        counts = split(labels, num_clients, classes_per_client, seed=seed)
    except ValueError:
        return
    assert np.count_nonzero(counts, axis=1).max() <= classes_per_client
    np.testing.assert_array_equal(counts.sum(axis=0), sizes)


def test_a_class_is_split_evenly_among_its_holders():
    counts = split(np.repeat(np.arange(10), 100), 15, 3)
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


@pytest.mark.parametrize(("num_clients", "num_classes", "held"), [(3, 10, 2), (50, 100, 1)])
def test_classes_that_nobody_could_hold_are_an_error(num_clients, num_classes, held):
    with pytest.raises(ValueError, match=f"classes_per_client={held} lets {num_clients} clients"):
        split(np.repeat(np.arange(num_classes), 100), num_clients, held)


def test_more_classes_than_there_are_is_an_error():
    with pytest.raises(ValueError, match=r"classes_per_client=11 exceeds the data's classes, 10"):
        split(np.repeat(np.arange(10), 100), 20, 11)


def test_a_client_left_with_too_little_is_an_error():
    with pytest.raises(ValueError, match=r"min_samples=10 cannot be met.* 1 examples"):
        split(np.append(np.zeros(99, dtype=int), 1), 2, 1, min_samples=10)


def test_large_classes_get_more_holders():
    counts = split(np.repeat([0, 1], [900, 100]), 10, 1, min_samples=100)
    assert np.count_nonzero(counts, axis=0).tolist() == [9, 1]


def test_labels_that_skip_numbers_count_as_present_only():
    counts = split(np.repeat([3, 9], 50), 4, 1, min_samples=25)
    assert sorted(np.flatnonzero(counts.sum(axis=0))) == [3, 9]


def test_one_class_only_is_an_even_split():
    assert split(np.zeros(50, dtype=int), 5, 1).tolist() == [[10]] * 5


def test_a_class_with_one_example_is_kept():
    counts = split(np.append(np.zeros(99, dtype=int), 1), 10, 2, min_samples=5)
    assert counts[:, 1].sum() == 1
