from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.datamodules.federated import FederatedDataModule, Split
from flfast.datamodules.fetching import Loading
from flfast.datamodules.partitions.natural import natural
from flfast.datamodules.shifts.rotation import rotation
from flfast.datamodules.sources.digits import digits
from flfast.datamodules.sources.mnist import mnist
from flfast.zoo.datamodules.sources.copies import copies

DIGITS = partial(digits, test_fraction=0.2, mean=[0.0], std=[1.0])


@settings(max_examples=10)
@given(num_copies=st.integers(1, 5), num_clients=st.integers(5, 40), seed=st.integers(0, 99))
def test_every_copy_is_whole_and_divided_evenly_among_its_own_clients(
    num_copies, num_clients, seed
):
    one = DIGITS(seed=seed)
    made = copies(source=DIGITS, num_copies=num_copies, num_clients=num_clients, seed=seed)
    for number, own in enumerate(np.split(np.arange(len(made.targets)), num_copies)):
        assert torch.equal(made.inputs[own], one.inputs)
        assert torch.equal(made.targets[own], one.targets)
        assert np.array_equal(made.is_test[own], one.is_test)
        assert set(made.owner[own] % num_copies) == {number}
    for part in (made.is_test, ~made.is_test):
        sizes = np.bincount(made.owner[part], minlength=num_clients)
        for number in range(num_copies):
            assert np.ptp(sizes[number::num_copies]) <= 1


def test_copies_keep_the_names_of_classes_and_not_those_of_clients():
    one = replace(DIGITS(seed=0), class_names=tuple("abcdefghij"), client_names=("one", "two"))
    made = copies(source=lambda seed: one, num_copies=2, num_clients=4, seed=0)
    assert (made.class_names, made.client_names) == (one.class_names, ())


def test_a_dataset_that_cannot_be_read_is_named_by_its_key(tmp_path):
    source = partial(
        mnist, name="MNIST", root=str(tmp_path), download=False, mean=[0.0], std=[1.0]
    )
    with pytest.raises(ValueError, match=r"^data\.source\.root=.*set data\.source\.download=true"):
        copies(source=source, num_copies=4, num_clients=8, seed=0)


def test_a_client_without_examples_is_refused():
    for num_clients in (3, 4 * 1438 + 1):
        with pytest.raises(ValueError, match=r"data.num_copies=4; allowed: 4 to 5752"):
            copies(source=DIGITS, num_copies=4, num_clients=num_clients, seed=0)


def test_with_a_shift_each_cluster_has_the_whole_dataset_in_its_own_form():
    data = FederatedDataModule(
        partial(copies, source=DIGITS, num_copies=2, num_clients=6),
        partial(natural, group_size=1, rest="smaller"),
        seed=0,
        split=Split(0.0, 0.0),
        loading=Loading(eval_batch_size=1000),
        shift=rotation(angles=[0, 180], max_degrees=0.0, assignment="cyclic", at="always"),
    )
    data.setup()
    upright, turned = data.examples.inputs.chunk(2)
    assert torch.equal(turned, upright.flip(2, 3))
    assert len(data.splits["test"].indices) == 2 * int(DIGITS(seed=0).is_test.sum())
