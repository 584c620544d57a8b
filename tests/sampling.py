"""Samples of large parametrisations: README's test command runs few, `-m slow` the others."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

ZOO = ["fedala", "feddyn", "fedgen", "heterofl", "ifca", "mime", "pfedhn"]
"""Algorithms of the zoo of which README's test command runs the tests, each of another kind:
own models, a regulariser, a generator, slices, clusters, two calls, a hypernetwork."""


def rotating(*axes, every, name=lambda value: getattr(value, "__name__", str(value))):
    """Parameters: each combination of values, all marked slow but one in `every`.

    Any two values of different axes are together in one that is not slow, if there is a third axis
    with at least `every` values; with two axes, each value is in one if one has as many.
    """
    chosen = []
    for places in product(*(range(len(axis)) for axis in axes)):
        values = [list(axis)[place] for axis, place in zip(axes, places, strict=True)]
        marks = [pytest.mark.slow] * (sum(places) % every != 0)
        chosen.append(pytest.param(*values, marks=marks, id=" + ".join(map(name, values))))
    return chosen


def others_slow(cases: Sequence[Any], fast: Sequence[Any]) -> list[Any]:
    """The cases of a parametrisation; all that are not in `fast` are marked slow.

    Args:
        cases: arguments of a test; a tuple has one value for each argument.
        fast: those that show the property; they should use every value of an argument.
    """

    def case_of(case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=() if case in fast else pytest.mark.slow)

    return [case_of(case) for case in cases]
