"""Order, direction and headline of metrics, also of those that users' modules log."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.tasks.names import ALL_METRICS, METRICS, SCORES, falls, headline, in_order, in_range

NAMES = st.lists(
    st.sampled_from((*ALL_METRICS, "acc", "f 2", "a/b", "top-5")) | st.text(max_size=5)
)
FALLING = [
    "loss",
    "val/MSELoss",
    "dice_loss",
    "MeanAbsoluteError",
    "CharErrorRate",
    "test.nll",
    "a/WER",
]
FALLING += [
    "negative log-likelihood",
    "cross_entropy",
    "KL",
    "rmse_1",
    "word error",
    "top1.err",
    "ece-15",
]
RISING = [
    "acc",
    "val/lossless",
    "terror",
    "skills",
    "F1",
    "r2",
    "bleu",
    "elbo",
    "R2Score",
    "",
    "losses",
]


@given(NAMES, st.randoms(use_true_random=False))
def test_an_order_has_every_name_once_and_built_in_ones_first(names, rng):
    found = in_order(names)
    assert sorted(found) == sorted({*names})
    known = [name for name in found if name in ALL_METRICS]
    assert found[: len(known)] == known
    shuffled = random.Random(rng.random()).sample(names, len(names))
    assert in_order(shuffled)[: len(known)] == known
    assert in_order(found) == found


@given(NAMES)
def test_the_headline_is_one_of_the_names(names):
    found = headline(names)
    assert found in names or not any(names)
    if {*SCORES} & {*names}:
        assert found in SCORES
    elif "loss" in names:
        assert found == "loss"


def test_the_headline_of_a_task_is_what_its_models_are_compared_by():
    found = {task: headline(names) for task, names in METRICS.items() if names}
    assert found == {
        **dict.fromkeys(("classification", "language", "multilabel"), "accuracy"),
        "regression": "loss",
        "survival": "concordance",
        "forecasting": "mase",
        "segmentation": "dice",
    }


@pytest.mark.parametrize("name", FALLING)
def test_a_word_says_that_a_metric_should_fall(name):
    assert falls(name)
    assert falls(f"personal_val/{name}_worst10")


@pytest.mark.parametrize("name", RISING)
def test_other_names_should_rise(name):
    assert not falls(name)
    assert not falls(f"val/{name}")


@given(st.text(), st.floats())
def test_a_metric_of_a_users_own_may_have_any_value(name, value):
    assert name in ALL_METRICS or in_range(name, value)
