"""Samples of combinations: few are in every test run, all are in the nightly one."""

from itertools import product

import pytest


def rotating(*axes, every, name=lambda value: getattr(value, "__name__", str(value))):
    """Parameters: each combination of values, all marked slow but one in `every`.

    Any two values of different axes are together in one that is not slow, if there is a third axis
    with at least `every` values; with two axes, each value is in one.
    """
    chosen = []
    for places in product(*(range(len(axis)) for axis in axes)):
        values = [list(axis)[place] for axis, place in zip(axes, places, strict=True)]
        marks = [pytest.mark.slow] * (sum(places) % every != 0)
        chosen.append(pytest.param(*values, marks=marks, id=" + ".join(map(name, values))))
    return chosen
