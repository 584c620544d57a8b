import numpy as np
import torch

from flfast.datamodules.sources.digits import digits

STATS = {"mean": [0.2873], "std": [0.3539]}


def test_all_digits_are_grey_images_that_the_statistics_normalise():
    examples = digits(test_fraction=0.2, seed=0, **STATS)
    assert examples.inputs.shape == (1797, 1, 8, 8)
    assert examples.inputs.dtype == torch.uint8
    assert (int(examples.inputs.min()), int(examples.inputs.max())) == (0, 240)
    assert examples.targets.unique().tolist() == [*range(10)]
    normal = examples.transform(examples.inputs, dtype=torch.float32)
    assert abs(float(normal.mean())) < 1e-3
    assert abs(float(normal.std()) - 1) < 1e-3


def test_the_test_set_is_stratified_and_depends_on_the_seed_alone():
    first, again, other = (digits(test_fraction=0.2, seed=s, **STATS).is_test for s in (1, 1, 2))
    labels = digits(test_fraction=0.2, seed=1, **STATS).targets.numpy()
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.abs(np.bincount(labels[first]) - 0.2 * np.bincount(labels)).max() <= 0.5


def test_without_a_test_fraction_there_is_no_test_set():
    assert digits(test_fraction=0, seed=0, **STATS).is_test is None


def test_digits_are_those_that_scikit_learn_returns(monkeypatch):
    ours = digits(test_fraction=0, seed=0, **STATS)
    monkeypatch.setattr("flfast.datamodules.sources.digits.find_spec", lambda _: None)
    theirs = digits(test_fraction=0, seed=0, **STATS)
    assert torch.equal(ours.inputs, theirs.inputs)
    assert torch.equal(ours.targets, theirs.targets)
