import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.datamodules.sources.synthetic import Synthetic

SETTINGS = {
    "num_examples": 600,
    "num_test": 200,
    "shape": [8],
    "num_classes": 4,
    "num_clients": 7,
    "noise": 1.0,
    "task": None,
    "seed": 0,
}


@given(st.integers(1, 30), st.integers(0, 40), st.integers(0, 50))
def test_every_client_gets_its_share(num_clients, extra, num_test):
    examples = Synthetic(
        **SETTINGS
        | {"num_clients": num_clients, "num_examples": num_clients + extra, "num_test": num_test}
    ).load()
    assert examples.inputs.shape == (num_clients + extra + num_test, 8)
    is_test = np.zeros(len(examples.targets), bool) if num_test == 0 else examples.is_test
    assert is_test.sum() == num_test
    train = np.bincount(examples.owner[~is_test], minlength=num_clients)
    test = np.bincount(examples.owner[is_test], minlength=num_clients)
    assert len(train) == len(test) == num_clients
    assert train.min() >= 1
    assert np.ptp(train) <= 1
    assert np.ptp(test) <= 1


def test_no_test_examples_is_no_test_set():
    assert Synthetic(**SETTINGS | {"num_test": 0}).load().is_test is None


def test_the_numbers_depend_on_the_seed_alone():
    first, again, other = (Synthetic(**SETTINGS | {"seed": seed}).load() for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.inputs, other.inputs)


def test_test_examples_are_classified_by_the_means_of_the_training_examples():
    examples = Synthetic(**SETTINGS).load()
    assert examples.inputs.dtype == torch.float32
    train, test = torch.from_numpy(~examples.is_test), torch.from_numpy(examples.is_test)
    means = torch.stack(
        [examples.inputs[train & (examples.targets == c)].mean(0) for c in range(4)]
    )
    nearest = torch.cdist(examples.inputs[test], means).argmin(1)
    assert (nearest == examples.targets[test]).float().mean() > 0.8


def test_noise_0_makes_all_examples_of_a_class_the_same():
    examples = Synthetic(**SETTINGS | {"noise": 0.0}).load()
    assert len(examples.inputs.unique(dim=0)) == 4


def test_the_shape_is_that_of_one_input():
    examples = Synthetic(**SETTINGS | {"shape": [1, 4, 5]}).load()
    assert examples.inputs.shape == (800, 1, 4, 5)
    assert examples.input_shape == (1, 4, 5)


def test_classes_have_the_numbers_that_they_always_had():
    examples = Synthetic(**SETTINGS).load()
    assert examples.targets[:8].tolist() == [3, 2, 2, 3, 3, 2, 2, 2]
    assert examples.inputs[0, :3].tolist() == pytest.approx(
        [1.1135013, 0.0895966, -1.1141534], abs=1e-6
    )


def test_numbers_are_linear_in_the_inputs_but_for_noise():
    for noise, remainder in ((0.0, 0.0), (0.5, 0.25)):
        examples = Synthetic(**SETTINGS | {"task": "regression", "noise": noise}).load()
        assert examples.targets.shape == (800, 4)
        inputs, targets = examples.inputs.numpy(), examples.targets.numpy()
        _, squares, *_ = np.linalg.lstsq(inputs, targets, rcond=None)
        assert targets.var(axis=0) == pytest.approx(1 + remainder, rel=0.2)
        assert squares / len(targets) == pytest.approx(remainder, rel=0.2, abs=1e-9)


def test_labels_are_the_signs_of_the_numbers():
    numbers, labels = (
        Synthetic(**SETTINGS | {"task": t}).load() for t in ("regression", "multilabel")
    )
    assert torch.equal(numbers.inputs, labels.inputs)
    assert torch.equal(numbers.targets > 0, labels.targets.bool())
    assert labels.num_classes == 4


def test_times_are_exponential_with_the_hazards_of_such_numbers():
    options = SETTINGS | {"num_classes": None, "noise": 0.0, "num_examples": 4000}
    assert Synthetic(**options | {"task": "regression"}).load().num_classes == 10
    times = Synthetic(**options | {"task": "survival"}).load()
    numbers = Synthetic(**options | {"task": "regression", "num_classes": 1}).load()
    assert torch.equal(times.inputs, numbers.inputs)
    hazard = numbers.targets[:, 0].double().exp()
    time, event = times.targets.double().unbind(dim=1)
    assert event.mean().item() == pytest.approx((hazard / (1 + hazard)).mean().item(), abs=0.03)
    # The first of two exponential times is exponential, with the sum of the hazards.
    assert (time * (1 + hazard)).mean().item() == pytest.approx(1, abs=0.06)


@given(st.sampled_from([0.0, 1.0, 3.0]), st.integers(0, 99))
def test_a_token_is_usually_followed_by_the_same_token(noise, seed):
    options = {"task": "language", "num_classes": 6, "noise": noise, "seed": seed}
    examples = Synthetic(**SETTINGS | options).load()
    assert torch.equal(examples.inputs[:, 1:], examples.targets[:, :-1])
    pairs = torch.zeros(6, 6).index_put_(
        (examples.inputs.flatten(), examples.targets.flatten()), torch.tensor(1.0), accumulate=True
    )
    share = (pairs.max(dim=1).values / pairs.sum(dim=1)).mean().item()
    chance = 1 / (1 + noise)
    assert share == pytest.approx(chance + (1 - chance) / 6, abs=0.05)


def test_texts_of_several_dimensions_are_refused():
    with pytest.raises(ValueError, match=r"data.shape=\[2, 3\] with task=language"):
        Synthetic(**SETTINGS | {"task": "language", "shape": [2, 3]}).load()


def test_masks_are_made_by_another_source():
    with pytest.raises(ValueError, match=r"task=segmentation; allowed: .*data=synthetic_shapes"):
        Synthetic(**SETTINGS | {"task": "segmentation"}).load()


def test_a_million_clients_take_seconds():
    start = time.perf_counter()
    examples = Synthetic(
        **SETTINGS | {"num_examples": 10**6, "num_clients": 10**6, "shape": [32], "num_test": 0}
    ).load()
    assert time.perf_counter() - start < 20
    assert np.array_equal(examples.owner, np.arange(10**6))


def test_more_clients_than_examples_are_refused():
    with pytest.raises(ValueError, match=r"data.num_examples=5 data.num_clients=7: each"):
        Synthetic(**SETTINGS | {"num_examples": 5}).load()


def test_an_empty_shape_is_refused():
    with pytest.raises(ValueError, match=r"data.shape=\[\]"):
        Synthetic(**SETTINGS | {"shape": []}).load()
