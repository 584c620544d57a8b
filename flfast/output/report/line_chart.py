"""A chart of lines, with bands for their intervals."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from flfast.output.report.chart import Chart, DataTable
from flfast.output.report.svg import (
    WIDTH,
    Scale,
    colour,
    dash,
    element,
    grid,
    mark,
    picture,
    text,
    thinned,
)

_HEIGHT = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 14, 48
_MOST_POINTS = 100
_FEW = 40


class Line(NamedTuple):
    """A series.

    Attributes:
        name: in the legend.
        x: places.
        y: values.
        low: lower ends of the values' intervals; empty, or NaN where there is none.
        high: upper ends, likewise.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


class Axes(NamedTuple):
    """Names and forms of the axes.

    Attributes:
        x: name of the x axis.
        y: name of the y axis.
        x_form: an x as text.
        y_form: a y as text on the axis.
        exact: a y as text in the table.
    """

    x: str
    y: str
    x_form: Callable[[float], str]
    y_form: Callable[[float], str]
    exact: Callable[[float], str]


def line_chart(
    title: str, lines: Sequence[Line], axes: Axes, *, note: str = "", steps: bool = False
) -> Chart | None:
    """The chart; None if no line has a point.

    Args:
        title: of the chart.
        lines: in the order of their colours.
        axes: names and forms.
        note: how to read it.
        steps: whether a value holds until the next one.
    """
    shown = [_thin(line) for line in lines]
    if not any(line.x for line in shown):
        return None
    across, up = _scales(shown)
    marks = [_draw(number, line, across, up, axes, steps) for number, line in enumerate(shown)]
    bottom = _HEIGHT - _BOTTOM
    svg = picture(
        _HEIGHT,
        f"{title}: {axes.y} over {axes.x}",
        *grid(up, (_LEFT, WIDTH - _RIGHT), vertical=False, form=axes.y_form),
        *grid(across, (bottom, _TOP), vertical=True, form=axes.x_form),
        text((_LEFT + WIDTH - _RIGHT) / 2, _HEIGHT - 8, axes.x, "middle", class_="name"),
        *marks,
    )
    named = [(n, line.name) for n, line in enumerate(shown) if line.x]
    legend = named if len(lines) > 1 else []
    return Chart(title, svg, legend, _table(title, shown, axes), note)


def _thin(line: Line) -> Line:
    finite = [n for n, y in enumerate(line.y) if math.isfinite(y)]
    kept = thinned(finite, _MOST_POINTS)
    x, y = [line.x[n] for n in kept], [line.y[n] for n in kept]
    return Line(
        line.name,
        x,
        y,
        [line.low[n] for n in kept] if line.low else y,
        [line.high[n] for n in kept] if line.high else y,
    )


def _scales(lines: Sequence[Line]) -> tuple[Scale, Scale]:
    x = [place for line in lines for place in line.x]
    y = [v for line in lines for v in line.y]
    # A wide interval in an early round must not flatten the lines.
    room = (max(y) - min(y)) or abs(max(y)) or 1.0
    ends = [v for line in lines for v in (*line.low, *line.high) if math.isfinite(v)]
    low = max(min([*y, *ends]), min(y) - 0.5 * room) - 0.03 * room
    high = min(max([*y, *ends]), max(y) + 0.5 * room) + 0.03 * room
    if min([*y, *ends]) >= 0:
        low = max(0.0, low)
    last = max(x) if max(x) > min(x) else min(x) + 1
    return Scale(min(x), last, _LEFT, WIDTH - _RIGHT), Scale(low, high, _HEIGHT - _BOTTOM, _TOP)


def _draw(
    number: int,
    line: Line,
    across: Scale,
    up: Scale,
    axes: Axes,
    steps: bool,  # noqa: FBT001
) -> Markup:
    points = [(across(x), up(y)) for x, y in zip(line.x, line.y, strict=True)]
    path = _path(points, steps=steps)
    band = [
        (across(x), up(low), up(high))
        for x, low, high in zip(line.x, line.low, line.high, strict=True)
        if math.isfinite(low) and math.isfinite(high)
    ]
    outline = [(x, low) for x, low, _ in band] + [(x, high) for x, _, high in reversed(band)]
    marks = [
        mark(x, y, _tip(line, n, axes), series=number, radius=2.6 if len(points) <= _FEW else 1.2)
        for n, (x, y) in enumerate(points)
    ]
    filled = element("path", d=_path(outline) + "Z", class_=f"band {colour(number)}")
    return element(
        "g",
        *([filled] if any(low != high for _, low, high in band) else []),
        element("path", d=path, class_=f"line {colour(number)} {dash(number)}"),
        *marks,
    )


def _path(points: Sequence[tuple[float, float]], *, steps: bool = False) -> str:
    words = [f"M{x:g} {y:g}" if n == 0 else "" for n, (x, y) in enumerate(points)]
    for n, (x, y) in enumerate(points[1:], start=1):
        words[n] = f"H{x:g}V{y:g}" if steps else f"L{x:g} {y:g}"
    return "".join(words)


def _cell(line: Line, place: int, axes: Axes) -> str:
    low, high = line.low[place], line.high[place]
    value = axes.exact(line.y[place])
    if not math.isfinite(low) or low == high:
        return value
    return f"{value} [{axes.exact(low)}, {axes.exact(high)}]"


def _tip(line: Line, place: int, axes: Axes) -> str:
    name = f"{line.name}, " if line.name else ""
    return f"{name}{axes.x} {axes.x_form(line.x[place])}: {_cell(line, place, axes)}"


def _table(title: str, lines: Sequence[Line], axes: Axes) -> DataTable:
    cells: dict[float, dict[int, str]] = {}
    for number, line in enumerate(lines):
        for place, x in enumerate(line.x):
            cells.setdefault(x, {})[number] = _cell(line, place, axes)
    drawn = [number for number, line in enumerate(lines) if line.x]
    rows = [[axes.x_form(x), *(cells[x].get(n, "") for n in drawn)] for x in sorted(cells)]
    return DataTable(title, [axes.x, *(lines[n].name or axes.y for n in drawn)], rows)
