"""A chart of means with their intervals, and the value of every seed."""

import math
from functools import partial

from markupsafe import Markup

from flfast.output.report.chart import Chart, DataTable
from flfast.output.report.content import Content
from flfast.output.report.svg import WIDTH, Scale, colour, element, grid, mark, picture, text
from flfast.output.results.formats import interval, tick, value

_LEFT, _RIGHT, _TOP, _ROW, _BOTTOM = 16, 16, 4, 46, 28


def interval_chart(content: Content) -> Chart | None:
    """The chart of the criterion, best setting first; None for a single run or without results."""
    if content.criterion is None or content.single or not content.ranking:
        return None
    column = content.criterion.name
    title, found = f"Last {column}", [content.intervals[name] for name in content.ranking]
    values = [v for name in content.ranking for v in content.results[name].values()]
    ends = [end for one in found for end in one[1:3] if math.isfinite(end)]
    low, high = min([*values, *ends]), max([*values, *ends])
    room = (high - low) or 0.02 * abs(high) or 1.0
    scale = Scale(low - 0.04 * room, high + 0.04 * room, _LEFT, WIDTH - _RIGHT)
    bottom = _TOP + _ROW * len(found)
    rows = [_row(content, name, _TOP + _ROW * n, scale) for n, name in enumerate(content.ranking)]
    svg = picture(
        bottom + _BOTTOM,
        f"{title}: one row per setting",
        *grid(scale, (bottom, _TOP), vertical=True, form=partial(tick, column)),
        *(part for row in rows for part in row),
    )
    cells = [
        [
            name,
            interval(column, one),
            str(one.num),
            ", ".join(value(column, v) for v in content.results[name].values()),
        ]
        for name, one in zip(content.ranking, found, strict=True)
    ]
    headings = ["setting", "mean and 95 % interval", "seeds", "value of each seed"]
    table = DataTable(title, headings, cells)
    note = "Large dot: mean. Line: 95 % interval of the mean. Small dots: seeds."
    return Chart(title, svg, [], table, note)


def _row(content: Content, name: str, top: float, scale: Scale) -> list[Markup]:
    assert content.criterion is not None
    column, number = content.criterion.name, content.names.index(name)
    found, y, parts = content.intervals[name], top + 30, [text(_LEFT, top + 16, name)]
    if math.isfinite(found.low):
        ends = {"x1": scale(found.low), "x2": scale(found.high), "y1": y, "y2": y}
        parts.append(element("line", **ends, class_=f"whisker {colour(number)}"))
    for seed, result in content.results[name].items():
        tip = f"{name}, seed {seed}: {value(column, result)}"
        parts.append(mark(scale(result), y + 9, tip, series=number, radius=2.5))
    tip = f"{name}: {interval(column, found)}, {found.num} seeds"
    return [*parts, mark(scale(found.mean), y, tip, series=number, radius=6)]
