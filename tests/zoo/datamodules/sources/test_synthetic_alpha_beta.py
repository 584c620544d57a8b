import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.zoo.datamodules.sources.synthetic_alpha_beta import SyntheticAlphaBeta

SETTINGS = {
    "alpha": 1.0,
    "beta": 1.0,
    "iid": False,
    "num_clients": 30,
    "num_features": 60,
    "num_classes": 10,
    "test_fraction": 0.2,
    "seed": 0,
}


def means(examples):
    """Mean input of each client, [K, num_features]."""
    sums = np.zeros((examples.owner.max() + 1, examples.inputs.shape[1]))
    np.add.at(sums, examples.owner, examples.inputs.numpy())
    return sums / np.bincount(examples.owner)[:, None]


@settings(max_examples=12)
@given(st.integers(1, 12), st.floats(0, 0.9), st.booleans(), st.integers(0, 99))
def test_every_client_has_its_share_of_test_examples(num_clients, test_fraction, iid, seed):
    changed = {"num_clients": num_clients, "test_fraction": test_fraction, "iid": iid}
    examples = SyntheticAlphaBeta(**SETTINGS | changed | {"seed": seed, "num_features": 3}).load()
    sizes = np.bincount(examples.owner, minlength=num_clients)
    assert len(sizes) == num_clients
    assert sizes.min() >= 50
    assert examples.inputs.shape == (sizes.sum(), 3)
    is_test = np.zeros(sizes.sum(), bool) if examples.is_test is None else examples.is_test
    num_test = np.bincount(examples.owner[is_test], minlength=num_clients)
    assert np.abs(num_test - test_fraction * sizes).max() <= 0.5
    assert (num_test < sizes).all()


def test_sizes_are_log_normal_and_clients_have_50_more():
    examples = SyntheticAlphaBeta(**SETTINGS | {"num_clients": 1000, "num_features": 1}).load()
    sizes = np.bincount(examples.owner) - 50
    # A normal number is below its mean with probability 0.5, and one deviation above with 0.84.
    assert np.mean(sizes < np.exp(4)) == pytest.approx(0.5, abs=0.05)
    assert np.mean(sizes < np.exp(6)) == pytest.approx(0.84, abs=0.05)


def test_the_variance_of_the_jth_feature_within_a_client_is_j_to_the_minus_1_2():
    examples = SyntheticAlphaBeta(**SETTINGS).load()
    largest = examples.owner == np.bincount(examples.owner).argmax()
    variances = examples.inputs.numpy()[largest].var(axis=0)
    assert variances == pytest.approx(np.arange(1, 61) ** -1.2, rel=0.2)


def test_beta_spreads_the_inputs_of_clients():
    """The mean of a client's mean input has the variance beta^2 + 1 / num_features."""
    for beta in (0.0, 2.0):
        options = {"num_clients": 200, "num_features": 10, "beta": beta}
        found = means(SyntheticAlphaBeta(**SETTINGS | options).load()).mean(axis=1)
        assert found.var() == pytest.approx(beta**2 + 1 / 10, rel=0.4)


def distance_of_classes(examples):
    """Total variation between the classes of the two largest clients, in [0, 1]."""
    largest = np.bincount(examples.owner).argsort()[-2:]
    shares = [np.bincount(examples.targets[examples.owner == k], minlength=10) for k in largest]
    first, second = (share / share.sum() for share in shares)
    return np.abs(first - second).sum() / 2


def test_clients_have_the_same_classes_if_they_are_iid_and_not_otherwise():
    apart = SyntheticAlphaBeta(**SETTINGS | {"alpha": 0.0, "beta": 0.0}).load()
    alike = SyntheticAlphaBeta(**SETTINGS | {"iid": True}).load()
    assert np.abs(means(alike)).max() < 0.6  # of 50 examples: more than four standard errors
    assert distance_of_classes(alike) < 0.1
    assert distance_of_classes(apart) > 0.3


def test_alpha_cancels_in_the_argmax():
    """u_k is added to the weights of all classes, so it moves all outputs alike."""
    first, second = (SyntheticAlphaBeta(**SETTINGS | {"alpha": a}).load() for a in (0.0, 3.0))
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.targets, second.targets)


def test_iid_data_ignore_alpha_and_beta():
    first = SyntheticAlphaBeta(**SETTINGS | {"iid": True}).load()
    second = SyntheticAlphaBeta(**SETTINGS | {"iid": True, "alpha": 0.0, "beta": 5.0}).load()
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.targets, second.targets)


def test_the_numbers_depend_on_the_seed_alone():
    first, again, other = (SyntheticAlphaBeta(**SETTINGS | {"seed": s}).load() for s in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not np.array_equal(first.owner, other.owner)
