"""Kaplan-Meier curves against their definition, and their file."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.output.results.survival_curves import (
    COLUMNS,
    GROUPS,
    curve_charts,
    curve_rows,
    kaplan_meier,
)


def draw(num, seed):
    """Risk, time and event of examples; times have ties."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=num), rng.integers(9, size=num) / 2.0, rng.integers(2, size=num)


@given(st.integers(1, 30), st.integers(0, 99))
def test_curves_are_products_over_event_times(num, seed):
    _, time, event = draw(num, seed)
    times, surviving = kaplan_meier(time, event)
    assert (times[0], surviving[0]) == (0, 1)
    for at, share in zip(times[1:], surviving[1:], strict=True):
        earlier = np.unique(time[time <= at])
        factors = [1 - event[time == t].sum() / (time >= t).sum() for t in earlier]
        assert share == pytest.approx(np.prod(factors))


def written(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    return path


@given(num=st.integers(1, 30), seed=st.integers(0, 99))
def test_a_file_has_a_chart_for_each_set(tmp_path_factory, num, seed):
    path = tmp_path_factory.mktemp("a") / "survival.csv"
    drawn = draw(num, seed)
    charts = curve_charts(
        written(path, [*curve_rows("global", *drawn), *curve_rows("new", *drawn)])
    )
    assert [chart.title for chart in charts] == ["Kaplan-Meier, global", "Kaplan-Meier, new"]
    assert [line.name for line in charts[0].lines] == list(GROUPS[: min(num, 3)])
    ordered = np.array_split(drawn[0].argsort(), 3)
    for line, members in zip(charts[0].lines, ordered, strict=False):
        x, y = kaplan_meier(drawn[1][members], drawn[2][members])
        assert (line.x, line.y) == (x.tolist(), y.tolist())


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    row = ("global", GROUPS[0], "nan", 1)
    with pytest.raises(ValueError, match="a number that is not finite"):
        curve_charts(written(tmp_path / "survival.csv", [row]))
