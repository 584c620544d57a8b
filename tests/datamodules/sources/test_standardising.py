import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flfast.datamodules.number_range import standardised


@given(st.integers(2, 30), st.integers(0, 10), st.integers(1, 3), st.integers(0, 99))
def test_training_examples_have_mean_0_and_deviation_1(num_train, num_test, width, seed):
    rng = np.random.default_rng(seed)
    values = 7 + 3 * rng.standard_normal((num_train + num_test, width))
    is_training = rng.permutation(num_train + num_test) < num_train
    found = standardised(values, is_training=is_training, names=["a", "b", "c"])
    np.testing.assert_allclose(found[is_training].mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(found[is_training].std(0), 1, atol=1e-9)
    # Test examples are moved by the same line, and have no part in it.
    values[~is_training] += 1000
    moved = standardised(values, is_training=is_training, names=["a", "b", "c"])
    np.testing.assert_array_equal(moved[is_training], found[is_training])


@given(st.integers(1, 5), st.integers(2, 40), st.integers(0, 99))
def test_a_client_is_standardised_as_if_it_were_alone(num_clients, num, seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((num + num_clients, 2)) * 5 + 1
    group = np.concatenate([np.arange(num_clients), rng.integers(num_clients, size=num)])
    is_training = np.concatenate([np.ones(num_clients, bool), rng.random(num) < 0.7])
    found = standardised(values, is_training=is_training, group=group, names=["a", "b", "c"])
    for client in range(num_clients):
        own = group == client
        alone = standardised(values[own], is_training=is_training[own], names=["a", "b", "c"])
        np.testing.assert_array_equal(found[own], alone)


def test_strangers_use_the_statistics_of_all_and_constants_become_0():
    values = np.array([[0.0, 0.1], [2.0, 0.1], [10.0, 0.1], [12.0, 0.1]])
    group = np.array([0, 0, 1, -1])
    is_training = np.array([True, True, True, False])
    found = standardised(values, is_training=is_training, group=group, names=["a", "b", "c"])
    assert found[:, 0].tolist() == [-1, 1, 0, (12 - 4) / np.std([0, 2, 10])]
    np.testing.assert_allclose(found[:, 1], 0, atol=1e-12)


SIZES = st.sampled_from(
    [0.0, 5e-324, 1e-300, 1e-20, 0.1, 1 / 3, 1e9 + 0.1, 2**53 + 2, 2**63 - 1, 1e31, 3e38, 1e300]
)


NORMAL = SIZES.filter(lambda size: size > 1e-307)


@given(SIZES, st.sampled_from([1, -1]), st.integers(1, 300), st.integers(1, 3))
def test_equal_values_of_every_size_become_0(value, sign, num, num_clients):
    values = np.full((num + num_clients, 1), sign * float(value))
    group = np.arange(num + num_clients) % num_clients
    for kind in (None, group):
        found = standardised(values, is_training=group >= 0, group=kind, names=["a"])
        assert not found.any()


@given(NORMAL, st.integers(2, 300), st.sampled_from([2, 1 + 1e-9]))
def test_columns_with_another_value_have_deviation_1(value, num, factor):
    values = np.full((num, 1), float(value))
    values[-1] *= factor
    found = standardised(values, is_training=np.ones(num, bool), names=["a"])
    np.testing.assert_allclose([found.mean(), found.std()], [0, 1], atol=1e-5)


@given(NORMAL, st.integers(2, 300), st.integers(0, 99))
def test_a_spread_that_is_rounding_only_is_none(value, num, seed):
    ulps = np.random.default_rng(seed).integers(-2, 3, num)
    values = (value + ulps * np.spacing(float(value)))[:, None]
    found = standardised(values, is_training=np.arange(num) < num - 1, names=["a"])
    assert np.abs(found).max() < 1e-12


def test_long_numbers_that_differ_are_standardised():
    values = (10**15 + np.arange(100))[:, None].astype(np.float64)
    found = standardised(values, is_training=np.ones(100, bool), names=["a"])
    expected = (np.arange(100) - 49.5) / np.arange(100).std()
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-9)
