import numpy as np
import pytest

from flfast.datamodules.partitions.dirichlet import dirichlet


def split(labels, num_clients, alpha, *, balanced=False, min_samples=1, seed=0):
    """Counts [K, C] of the classes that occur."""
    rng = np.random.default_rng(seed)
    owner = dirichlet(
        labels,
        num_clients=num_clients,
        alpha=alpha,
        min_samples=min_samples,
        balanced=balanced,
        rng=rng,
    )
    classes = np.unique(labels, return_inverse=True)[1]
    counts = np.zeros((num_clients, classes.max() + 1), dtype=int)
    np.add.at(counts, (owner, classes), 1)
    return counts


SKEWED = np.repeat(np.arange(4), [4000, 2000, 1000, 1000])


@pytest.mark.parametrize("balanced", [False, True])
def test_a_large_alpha_gives_every_client_the_class_proportions(balanced):
    counts = split(SKEWED, 10, 1e6, balanced=balanced)
    np.testing.assert_allclose(counts, np.tile([400, 200, 100, 100], (10, 1)), atol=3)


def test_a_tiny_alpha_gives_every_class_to_nearly_one_client():
    counts = split(SKEWED, 10, 1e-6)
    # Nine clients at most are filled up with one example each.
    assert (counts.max(axis=0) >= counts.sum(axis=0) - 9).all()


def test_a_tiny_alpha_gives_balanced_clients_of_nearly_one_class():
    counts = split(np.repeat(np.arange(10), 1000), 100, 1e-6, balanced=True)
    # A client mixes only where it uses up a class: at most 9 times for 10 classes.
    assert np.count_nonzero(counts, axis=1).sum() <= 100 + 9


@pytest.mark.parametrize("alpha", [1e-6, 0.1, 1, 1e6])
def test_balanced_sizes_differ_by_at_most_one(alpha):
    sizes = split(SKEWED, 37, alpha, balanced=True).sum(axis=1)
    assert np.ptp(sizes) <= 1


@pytest.mark.parametrize("balanced", [False, True])
def test_a_smaller_alpha_skews_more(balanced):
    def skew(alpha):
        counts = split(np.repeat(np.arange(10), 600), 20, alpha, balanced=balanced)
        return (counts.max(axis=1) / counts.sum(axis=1)).mean()

    assert skew(0.05) > skew(0.5) > skew(5) > skew(500)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize(
    ("num_examples", "num_clients", "alpha"), [(60_000, 1000, 0.05), (70_000, 500, 0.1)]
)
def test_many_clients_and_strong_skew_end_soon(num_examples, num_clients, alpha, balanced):
    labels = np.random.default_rng(0).integers(10, size=num_examples)
    counts = split(labels, num_clients, alpha, min_samples=10, balanced=balanced)
    assert counts.sum() == num_examples
    assert counts.sum(axis=1).min() >= 10


@pytest.mark.parametrize("balanced", [False, True])
def test_one_class_only_is_no_special_case(balanced):
    assert split(np.full(50, 7), 5, 0.1, balanced=balanced, min_samples=10).tolist() == [[10]] * 5


@pytest.mark.parametrize("balanced", [False, True])
def test_a_class_with_one_example_is_kept(balanced):
    labels = np.append(np.zeros(99, dtype=int), 5)
    assert split(labels, 10, 0.1, balanced=balanced)[:, 1].sum() == 1


def test_the_leftovers_go_to_a_random_client_id():
    labels = np.repeat(np.arange(10), 100)
    most = [split(labels, 10, 5, balanced=True, seed=seed).max(axis=1) for seed in range(50)]
    # The client served last has about half as much again of its most frequent class.
    assert np.ptp(np.mean(most, axis=0)) < 5
