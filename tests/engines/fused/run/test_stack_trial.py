"""A trial chooses another form of stacks only if it is clearly faster."""

import math

import pytest

from flfast.engines.fused.run.stack_trial import BUDGET_S, STEPS, StackForm, fastest

ALONE, WIDE, PART = StackForm(1), StackForm(32), StackForm(8)
UNFOLDED, UNFOLDED_PART = StackForm(32, unfold=True), StackForm(8, unfold=True)


def chosen(seconds, *, most=100, convolves=True, fixed=False):
    asked = []

    def timed(form):
        asked.append(form)
        return seconds.get(form, 9e-6)

    return fastest(timed, most=most, convolves=convolves, fixed=fixed), asked


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({ALONE: 5e-6, WIDE: 1e-6}, StackForm()),
        ({ALONE: 0.9e-6, WIDE: 1e-6, UNFOLDED: 0.9e-6}, StackForm()),
        ({ALONE: 0.5e-6, WIDE: 1e-6}, ALONE),
        ({ALONE: 5e-6, WIDE: 4e-6, UNFOLDED: 1e-6}, StackForm(unfold=True)),
        ({ALONE: 0.5e-6, WIDE: 4e-6, UNFOLDED: 1e-6}, ALONE),
        ({ALONE: 5e-6, WIDE: 4e-6, PART: 1e-6}, PART),
        ({ALONE: 5e-6, WIDE: 4e-6, UNFOLDED: 2e-6, UNFOLDED_PART: 1e-6}, UNFOLDED_PART),
        ({ALONE: 1e-6, WIDE: math.inf, UNFOLDED: math.inf, PART: math.inf}, ALONE),
        ({ALONE: 1e-6, WIDE: math.inf, UNFOLDED: 0.1e-6}, StackForm(unfold=True)),
        ({ALONE: math.inf, WIDE: 1e-6}, StackForm()),
    ],
)
def test_the_clearly_fastest_form_is_chosen(seconds, expected):
    form, asked = chosen(seconds)
    assert form == expected
    assert len({*asked}) == len(asked)


def test_a_number_that_must_stay_is_tried_with_both_convolutions_only():
    form, asked = chosen({ALONE: 1e-7, WIDE: 4e-6, UNFOLDED: 1e-6}, fixed=True)
    assert form == StackForm(unfold=True)
    assert asked == [ALONE, WIDE, UNFOLDED]
    _, asked = chosen({ALONE: 1e-7, WIDE: 4e-6}, most=5, convolves=False, fixed=True)
    assert asked == [ALONE, StackForm(5)]


def test_large_models_are_tried_in_small_stacks():
    slow = BUDGET_S / STEPS
    form, asked = chosen({ALONE: slow, StackForm(2): slow}, convolves=False)
    assert asked == [ALONE, StackForm(2)]
    assert form == StackForm()


def test_nothing_is_tried_where_one_client_fills_the_memory():
    assert chosen({}, most=1) == (StackForm(), [])
