import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flfast.datamodules.sources.held_out import held_out_test

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=80).map(np.array)
FRACTIONS = st.floats(0.01, 0.99)


@given(LABELS, FRACTIONS, st.integers(0, 2**31))
def test_every_class_gives_its_share_and_keeps_an_example(labels, fraction, seed):
    counts = np.bincount(labels)
    assume((counts > 1).any() and fraction * counts.max() >= 0.5)
    is_test = held_out_test(labels, test_fraction=fraction, seed=seed)
    given_away = np.bincount(labels[is_test], minlength=len(counts))
    share = np.minimum(fraction * counts, np.maximum(counts - 1, 0))
    assert np.abs(given_away - share).max() <= 0.5 + 1e-9
    assert (given_away[counts > 0] < counts[counts > 0]).all()


@given(LABELS, FRACTIONS)
def test_the_choice_is_a_function_of_the_seed(labels, fraction):
    def choose(seed):
        try:
            return held_out_test(labels, test_fraction=fraction, seed=seed).tolist()
        except ValueError as error:
            return str(error)

    assert choose(3) == choose(3)


def test_another_seed_chooses_other_examples():
    labels = np.arange(200) % 4
    first, second = (held_out_test(labels, test_fraction=0.3, seed=s) for s in (0, 1))
    assert (first != second).any()


def test_no_fraction_is_no_test_set():
    assert not held_out_test(np.array([0, 1]), test_fraction=0.0, seed=0).any()


def test_classes_too_small_for_the_fraction_are_an_error():
    with pytest.raises(ValueError, match=r"data.test_fraction=0.1 .* largest class has 3 "):
        held_out_test(np.repeat([0, 1], 3), test_fraction=0.1, seed=0)
