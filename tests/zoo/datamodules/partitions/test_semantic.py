import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flfast.zoo.datamodules.partitions.semantic import reassign, semantic

COUNTS = hnp.arrays(
    np.int64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.integers(0, 50)
)


def split(inputs, labels, *, num_clients=4, components=8, min_samples=1, seed=0):
    return semantic(
        labels,
        num_clients=num_clients,
        components=components,
        min_samples=min_samples,
        inputs=inputs.astype(np.float32),
        rng=np.random.default_rng(seed),
    )


@pytest.mark.parametrize("seed", range(3))
def test_writers_are_found_across_classes(seed):
    """Inputs are a class plus a writer's style: a client is a writer, with all classes."""
    rng = np.random.default_rng(seed)
    labels, writer = rng.integers(5, size=800), rng.integers(4, size=800)
    looks, styles = 10 * rng.standard_normal((5, 20)), 5 * rng.standard_normal((4, 20))
    inputs = looks[labels] + styles[writer] + 0.1 * rng.standard_normal((800, 20))
    owner = split(inputs, labels, seed=seed)
    pairs = set(zip(owner.tolist(), writer.tolist(), strict=True))
    assert len(pairs) == 4  # client and writer say the same


def test_clients_of_real_images_are_more_alike_than_random_ones():
    from sklearn.datasets import load_digits

    digits = load_digits()
    owner = split(digits.data, digits.target, num_clients=10, components=20, min_samples=30)
    assert np.bincount(owner).min() >= 30

    def spread(owner):
        """Mean variance of pixels within clients and classes."""
        cells = owner * 10 + digits.target
        total = sum(
            digits.data[cells == cell].var(axis=0).sum() * (cells == cell).sum()
            for cell in np.unique(cells)
        )
        return total / len(cells)

    assert spread(owner) < 0.85 * spread(np.random.default_rng(0).permutation(owner))


def test_a_class_with_fewer_examples_than_clients_is_kept():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [98, 2])
    owner = split(rng.standard_normal((100, 3)), labels, num_clients=7, min_samples=10)
    assert len(set(owner[98:])) == 2
    assert np.bincount(owner).min() >= 10


@given(before=COUNTS, seed=st.integers(0, 99))
def test_reassigning_reaches_the_counts_with_as_few_changes_as_possible(before, seed):
    rng = np.random.default_rng(seed)
    after = np.stack([rng.permutation(column) for column in before.T], axis=1)
    clients, classes = np.indices(before.shape)
    order = rng.permutation(before.sum())
    owner, labels = (np.repeat(of.ravel(), before.ravel())[order] for of in (clients, classes))
    changed = reassign(owner, labels, after, rng)
    found = np.zeros_like(after)
    np.add.at(found, (changed, labels), 1)
    np.testing.assert_array_equal(found, after)
    assert (changed != owner).sum() == np.maximum(before - after, 0).sum()
