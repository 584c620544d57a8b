import numpy as np
import pytest

from flfast.zoo.datamodules.partitions.sizes import client_sizes, sizes


def drawn(law, *, num_examples=1000, num_clients=4, sigma=0.0, min_samples=1, seed=0):
    return client_sizes(
        num_examples,
        num_clients=num_clients,
        sizes=law,
        sigma=sigma,
        min_samples=min_samples,
        rng=np.random.default_rng(seed),
    )


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        ("equal", [250, 250, 250, 250]),
        ("linear", [100, 200, 300, 400]),
        ("square", [33, 133, 300, 534]),  # 1, 4, 9, 16 of 30; the first has the smaller remainder
        ("exponential", [32, 87, 237, 644]),  # 1, e, e^2, e^3
        ([5, 1, 2, 2.0], [500, 100, 200, 200]),
        ([1e-300, 1e18, 1e18, 1e18], [1, 333, 333, 333]),
    ],
)
def test_sizes_are_those_of_the_law(law, expected):
    np.testing.assert_allclose(drawn(law), expected, atol=1)
    assert drawn(law).sum() == 1000


def test_a_thousand_clients_of_exponential_size_do_not_overflow():
    found = drawn("exponential", num_clients=1000, num_examples=50_000, min_samples=10)
    assert found[:980].tolist() == [10] * 980
    assert found.sum() == 50_000


def test_log_normal_sizes_have_the_asked_standard_deviation():
    found = drawn("equal", num_examples=10**8, num_clients=4000, sigma=0.5)
    np.testing.assert_allclose(np.log(found).std(), 0.5, rtol=0.05)
    assert (drawn("equal", sigma=0.5) != drawn("equal", sigma=0.5, seed=1)).any()


def test_numbers_for_other_clients_are_refused():
    with pytest.raises(ValueError, match=r"sizes=\[1.0, 2.0\]: 2 numbers for .*num_clients=4; al"):
        drawn([1.0, 2.0])


def test_labels_stay_iid():
    owner = sizes(
        10_000,
        num_clients=4,
        sizes="linear",
        sigma=0.0,
        min_samples=1,
        rng=np.random.default_rng(0),
    )
    assert np.bincount(owner).tolist() == [1000, 2000, 3000, 4000]
    labels = np.arange(10_000) % 10
    for client in range(4):
        shares = np.bincount(labels[owner == client]) / (owner == client).sum()
        np.testing.assert_allclose(shares, 0.1, atol=0.03)
