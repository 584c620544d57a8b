import numpy as np
import pytest

from flfast.zoo.datamodules.partitions.semantic import semantic


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
