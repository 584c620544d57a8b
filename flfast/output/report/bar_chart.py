"""Charts of a row each: horizontal bars, divided into parts, and means with their intervals."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from markupsafe import Markup

from flfast.output.report.chart import Chart, DataTable
from flfast.output.report.content import Content
from flfast.output.report.svg import WIDTH, Scale, colour, element, grid, mark, picture, text
from flfast.output.results.formats import interval, tick, value

_RIGHT, _TOP, _BOTTOM = 14, 4, 26
_ROW, _MARGIN = 46, 16  # of a chart of intervals


def bar_chart(  # noqa: PLR0913 - all but two are texts
    title: str,
    bars: Mapping[str, Sequence[float]],
    series: Sequence[str],
    *,
    heading: str,
    form: Callable[[float], str],
    above: bool = False,
    note: str = "",
) -> Chart | None:
    """The chart; None if all parts are zero.

    Args:
        title: title of the chart.
        bars: lengths of the parts, one per series, by name; from top to bottom.
        series: names of the parts.
        heading: what the bars are, such as `client`.
        form: a length as text.
        above: whether names stand above the bars, for long names.
        note: how to read it.
    """
    longest = max(map(sum, bars.values()), default=0.0)
    if longest <= 0:
        return None
    left, height = (8, 44) if above else (46, 20 if len(bars) <= 30 else 9)
    scale = Scale(0, longest, left, WIDTH - _RIGHT)
    bottom = _TOP + height * len(bars)
    drawn: list[Markup] = []
    for number, (name, parts) in enumerate(bars.items()):
        y = _TOP + height * number
        if above:
            drawn.append(text(left, y + 15, name))
        elif height > 12 or number % 5 == 0:
            drawn.append(text(left - 6, y + height / 2 + 4, name, "end"))
        top, thick = (y + 21, 16) if above else (y + 1.5, height - 3)
        drawn += _parts(name, [*zip(series, parts, strict=True)], scale, (top, thick), form)
    svg = picture(
        bottom + _BOTTOM,
        f"{title}: one bar per {heading}",
        *grid(scale, (bottom, _TOP), vertical=True, form=form),
        *drawn,
    )
    rows = [[name, *map(form, parts)] for name, parts in bars.items()]
    table = DataTable(title, [heading, *series], rows)
    return Chart(title, svg, [*enumerate(series)] if len(series) > 1 else [], table, note)


def _parts(
    bar: str,
    lengths: Sequence[tuple[str, float]],
    scale: Scale,
    place: tuple[float, float],
    form: Callable[[float], str],
) -> list[Markup]:
    found, start = [], 0.0
    for number, (name, length) in enumerate(lengths):
        if length > 0:
            x = scale(start)
            drawn = {"x": x, "width": round(max(0.5, scale(start + length) - x), 2)}
            kind = f"mark part {colour(number)} t{number // 8 % 3}"
            tip = f"{bar}, {name}: {form(length)}"
            drawn |= {"y": place[0], "height": place[1]}
            found.append(element("rect", **drawn, class_=kind, data_tip=tip, data_s=number))
        start += length
    return found


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
    scale = Scale(low - 0.04 * room, high + 0.04 * room, _MARGIN, WIDTH - _MARGIN)
    bottom = _TOP + _ROW * len(found)
    rows = [_row(content, name, _TOP + _ROW * n, scale) for n, name in enumerate(content.ranking)]
    svg = picture(
        bottom + 28,
        f"{title}: one row per setting",
        *grid(scale, (bottom, _TOP), vertical=True, form=partial(tick, column, values=values)),
        *(part for row in rows for part in row),
    )
    cells = []
    for name, one in zip(content.ranking, found, strict=True):
        by_seed = ", ".join(value(column, v) for v in content.results[name].values())
        cells.append([name, interval(column, one), str(one.num), by_seed])
    headings = ["setting", "mean and 95 % interval", "seeds", "value of each seed"]
    table = DataTable(title, headings, cells)
    note = "Large dot: mean. Line: 95 % interval of the mean. Small dots: seeds."
    return Chart(title, svg, [], table, note)


def _row(content: Content, name: str, top: float, scale: Scale) -> list[Markup]:
    assert content.criterion is not None
    column, number = content.criterion.name, content.names.index(name)
    found, y, parts = content.intervals[name], top + 30, [text(_MARGIN, top + 16, name)]
    if math.isfinite(found.low):
        ends = {"x1": scale(found.low), "x2": scale(found.high), "y1": y, "y2": y}
        parts.append(element("line", **ends, class_=f"whisker {colour(number)}"))
    for seed, result in content.results[name].items():
        tip = f"{name}, seed {seed}: {value(column, result)}"
        parts.append(mark(scale(result), y + 9, tip, series=number, radius=2.5))
    tip = f"{name}: {interval(column, found)}, {found.num} seeds"
    return [*parts, mark(scale(found.mean), y, tip, series=number, radius=6)]
