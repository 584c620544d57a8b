"""A chart of means with their intervals, and the value of every seed."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from markupsafe import Markup

from flfast.output.report.chart import Chart, DataTable
from flfast.output.report.svg import WIDTH, Scale, colour, element, grid, mark, picture, text
from flfast.output.results.formats import interval, tick, value
from flfast.output.results.statistics import Interval

_LEFT, _RIGHT, _TOP, _ROW, _BOTTOM = 16, 16, 4, 46, 28


class Estimate(NamedTuple):
    """A row of the chart.

    Attributes:
        name: of the setting.
        interval: of its mean.
        seeds: value by seed.
        series: number of its colour.
    """

    name: str
    interval: Interval
    seeds: Mapping[str, float]
    series: int


def interval_chart(title: str, estimates: Sequence[Estimate], column: str) -> Chart | None:
    """The chart; None if there is no value."""
    values = [v for e in estimates for v in e.seeds.values() if math.isfinite(v)]
    if not values:
        return None
    ends = [end for e in estimates for end in e.interval[1:3] if math.isfinite(end)]
    low, high = min([*values, *ends]), max([*values, *ends])
    room = (high - low) or 0.02 * abs(high) or 1.0
    scale = Scale(low - 0.04 * room, high + 0.04 * room, _LEFT, WIDTH - _RIGHT)
    bottom = _TOP + _ROW * len(estimates)
    rows = [_row(e, _TOP + _ROW * n, scale, column) for n, e in enumerate(estimates)]
    svg = picture(
        bottom + _BOTTOM,
        f"{title}: one row per setting",
        *grid(scale, (bottom, _TOP), vertical=True, form=partial(tick, column)),
        *(part for row in rows for part in row),
    )
    table = DataTable(
        title,
        ["setting", "mean and 95 % interval", "seeds", "value of each seed"],
        [
            [
                e.name,
                interval(column, e.interval),
                str(e.interval.num),
                ", ".join(value(column, v) for v in e.seeds.values()),
            ]
            for e in estimates
        ],
    )
    note = "Large dot: mean. Line: 95 % interval of the mean. Small dots: seeds."
    return Chart(title, svg, [], table, note)


def _row(estimate: Estimate, top: float, scale: Scale, column: str) -> list[Markup]:
    found, y = estimate.interval, top + 30
    parts = [text(_LEFT, top + 16, estimate.name)]
    if math.isfinite(found.low):
        parts.append(
            element(
                "line",
                x1=scale(found.low),
                x2=scale(found.high),
                y1=y,
                y2=y,
                class_=f"whisker {colour(estimate.series)}",
            )
        )
    for seed, number in estimate.seeds.items():
        if math.isfinite(number):
            tip = f"{estimate.name}, seed {seed}: {value(column, number)}"
            parts.append(mark(scale(number), y + 9, tip, series=estimate.series, radius=2.5))
    if math.isfinite(found.mean):
        tip = f"{estimate.name}: {interval(column, found)}, {found.num} seeds"
        parts.append(mark(scale(found.mean), y, tip, series=estimate.series, radius=6))
    return parts
