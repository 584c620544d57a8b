import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.zoo.datamodules.partitions.inner_dirichlet import inner_dirichlet

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 200))


def split(labels=LABELS, *, owner=None, seed=0, **options):
    given_options = {"num_clients": 5, "alpha": 0.5, "sizes": "linear", "sigma": 0.0}
    return inner_dirichlet(
        labels,
        **{**given_options, "min_samples": 1, "within_owners": owner is not None, **options},
        owner=owner,
        rng=np.random.default_rng(seed),
    )


def counts_of(owner, labels=LABELS):
    counts = np.zeros((owner.max() + 1, labels.max() + 1), dtype=int)
    np.add.at(counts, (owner, labels), 1)
    return counts


@given(alpha=st.floats(1e-6, 1e6), seed=st.integers(0, 99))
def test_clients_have_the_given_sizes_whatever_their_labels(alpha, seed):
    sizes = np.bincount(split(alpha=alpha, seed=seed, num_clients=4))
    assert sizes.tolist() == [200, 400, 600, 800]


def test_a_large_alpha_gives_everyone_the_class_proportions_and_a_smaller_one_skews_more():
    np.testing.assert_allclose(
        counts_of(split(alpha=1e6, num_clients=4)), np.arange(20, 81, 20)[:, None] * [[1] * 10]
    )

    def skew(alpha):
        counts = counts_of(split(alpha=alpha, num_clients=20, sizes="equal", sigma=0.3))
        return (counts.max(axis=1) / counts.sum(axis=1)).mean()

    assert skew(0.05) > skew(0.5) > skew(5) > skew(500)


def test_the_leftovers_do_not_go_to_certain_clients():
    most = [counts_of(split(alpha=5, sizes="equal", seed=seed)).max(axis=1) for seed in range(60)]
    assert np.ptp(np.mean(most, axis=0)) < 12


def test_within_owners_everybody_stays_with_its_owner():
    owner = np.random.default_rng(1).integers(3, size=len(LABELS))
    found = split(owner=owner, num_clients=4)
    assert np.array_equal(found // 4, owner)
    sizes = np.bincount(found).reshape(3, 4)
    assert (np.diff(sizes, axis=1) > 0).all()


def test_an_owner_with_too_few_examples_is_named():
    owner = np.repeat([0, 1], [1990, 10])
    with pytest.raises(
        ValueError, match=r"min_samples=3 needs 12 .* there are 10; .* client 1 of"
    ):
        split(owner=owner, num_clients=4, min_samples=3)


def test_data_without_owners_are_refused():
    with pytest.raises(ValueError, match=r"partition.within_owners=True needs data that names"):
        split(within_owners=True)
