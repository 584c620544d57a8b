"""Draws charts into a page: SVG, a legend, and the same values as a table."""

import base64
import math
from collections.abc import Mapping, Sequence
from functools import partial
from math import cos, pi, sin
from typing import NamedTuple

from markupsafe import Markup

from flfast.output.report.svg import (
    WIDTH,
    Scale,
    colour,
    element,
    grid,
    mark,
    outline,
    picture,
    text,
)
from flfast.output.results.charts import (
    VIEW_COLOURS,
    DataTable,
    Line,
    LineChart,
    Look,
    Mark,
    RowChart,
)
from flfast.output.results.formats import count, in_percent, interval, tick, value
from flfast.output.results.lines import thinned
from flfast.output.results.statistics import Interval

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 300, 62, 12, 14, 48  # of lines
_MOST_POINTS, _FEW = 100, 40
_ROWS_TOP, _ROWS_RIGHT, _ROWS_BOTTOM = 4, 14, 26
_RADIUS, _DOT, _SHADES = 200, 7, 5  # of a graph


class Drawn(NamedTuple):
    """A chart in a page.

    Attributes:
        title: what is shown.
        svg: the picture.
        table: the values.
        note: how to read it; may be empty.
        legend: look of each series and its name; empty if there is one series.
    """

    title: str
    svg: Markup
    table: DataTable
    note: str = ""
    legend: Sequence[tuple[str, str]] = ()


Chart = LineChart | RowChart | Drawn


def drawn(chart: Chart) -> Drawn | None:
    """The chart in a page; None if it has nothing to show."""
    if isinstance(chart, Drawn):
        return chart
    return _lines(chart) if isinstance(chart, LineChart) else _rows(chart)


def _lines(chart: LineChart) -> Drawn | None:
    lines = [_thin(line) for line in chart.lines]
    shown, named = {number: line for number, line in enumerate(lines) if line.x}, chart.points
    if not shown:
        return None
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in line.y]
    floor, end = _HEIGHT - _BOTTOM, WIDTH - _RIGHT
    across = Scale(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, _LEFT, end, chart.log)
    up = Scale(*_ends(ys, lines), floor, _TOP)
    svg = picture(
        _HEIGHT,
        f"{chart.title}: {chart.y} over {chart.x}",
        *grid(up, (_LEFT, end), vertical=False, form=partial(tick, chart.y, values=ys)),
        *grid(across, (floor, _TOP), vertical=True, form=partial(_place, chart.x, values=xs)),
        text((_LEFT + end) / 2, _HEIGHT - 8, chart.x, "middle", class_="name"),
        *(_line(number, line, chart, across, up) for number, line in shown.items()),
        *(mark(across(x), up(y), tip, look="c1", series=-1, radius=4) for x, y, tip in named),
    )
    legend = [(_look(number, line), line.name) for number, line in shown.items()]
    table = _values([*shown.values()], chart)
    return Drawn(chart.title, svg, table, chart.note, legend if len(lines) > 1 else [])


def _look(number: int, of: Line | Look) -> str:
    """Classes of a series: its colour, the dashes of a line, the texture of a bar.

    Lines differ in more than their colour, and so do those of one view.
    """
    place = VIEW_COLOURS.index(of.view) if of.view else number
    thin = isinstance(of, Line) and of.thin
    return f"{colour(number, of.view)} d{(place + 2 * thin) % 4} t{number // 8 % 3}"


def _place(axis: str, x: float, values: Sequence[float] = ()) -> str:
    return tick(axis, x) if in_percent(axis, values or [x]) else count(x)


def _thin(line: Line) -> Line:
    finite = [n for n, y in enumerate(line.y) if math.isfinite(y)]
    kept = thinned(finite, _MOST_POINTS)
    x, y = [line.x[n] for n in kept], [line.y[n] for n in kept]
    low = [line.low[n] for n in kept] if line.low else y
    high = [line.high[n] for n in kept] if line.high else y
    return line._replace(x=x, y=y, low=low, high=high)


def _ends(y: Sequence[float], lines: Sequence[Line]) -> tuple[float, float]:
    # A wide interval in an early round must not flatten the lines.
    room = (max(y) - min(y)) or abs(max(y)) or 1.0
    ends = [v for line in lines for v in (*line.low, *line.high) if math.isfinite(v)]
    low = max(min([*y, *ends]), min(y) - 0.5 * room) - 0.03 * room
    high = min(max([*y, *ends]), max(y) + 0.5 * room) + 0.03 * room
    return max(0.0, low) if min([*y, *ends]) >= 0 else low, high


def _line(number: int, line: Line, chart: LineChart, across: Scale, up: Scale) -> Markup:
    points = [(across(x), up(y)) for x, y in zip(line.x, line.y, strict=True)]
    band = [
        (across(x), up(low), up(high))
        for x, low, high in zip(line.x, line.low, line.high, strict=True)
        if math.isfinite(low) and math.isfinite(high)
    ]
    edge = [(x, low) for x, low, _ in band] + [(x, high) for x, _, high in reversed(band)]
    shade, radius = colour(number, line.view), 2.6 if len(points) <= _FEW else 1.2
    look = f"line {_look(number, line)}"
    shapes = [element("path", d=outline(points, steps=chart.steps), class_=look)]
    if any(low != high for _, low, high in band):
        shapes.insert(0, element("path", d=outline(edge) + "Z", class_=f"band {shade}"))
    for place, (x, y) in enumerate(points):
        name = f"{line.name}, " if line.name else ""
        at = f"{name}{chart.x} {_place(chart.x, line.x[place])}: {_cell(line, place, chart.y)}"
        shapes.append(mark(x, y, at, look=shade, series=number, radius=radius))
    return element("g", *shapes)


def _cell(line: Line, place: int, column: str) -> str:
    return interval(column, Interval(line.y[place], line.low[place], line.high[place], num=1))


def _values(lines: Sequence[Line], chart: LineChart) -> DataTable:
    cells: dict[float, dict[int, str]] = {}
    for number, line in enumerate(lines):
        for place, x in enumerate(line.x):
            cells.setdefault(x, {})[number] = _cell(line, place, chart.y)
    rows = [
        [_place(chart.x, x), *(cells[x].get(n, "") for n in range(len(lines)))]
        for x in sorted(cells)
    ]
    return DataTable(chart.title, [chart.x, *(line.name or chart.y for line in lines)], rows)


def _rows(chart: RowChart) -> Drawn | None:
    if not chart.marks:
        return None
    num, above = len(chart.names), chart.above
    left, height = (8, 44) if above else (46, 20 if num <= 30 else 9)
    middle, thick = (29, 16) if above else (height / 2, height - 3)
    across = Scale(*chart.ends, left, WIDTH - _ROWS_RIGHT)
    bottom = _ROWS_TOP + height * num
    shapes = grid(across, (bottom, _ROWS_TOP), vertical=True, form=chart.form)
    for row, name in enumerate(chart.names):
        top = _ROWS_TOP + height * row
        if above:
            shapes.append(text(left, top + 15, name))
        elif height > 12 or row % 5 == 0:
            shapes.append(text(left - 6, top + middle + 4, name, "end"))
    looks = [colour(number, series.view) for number, series in enumerate(chart.series)]
    for shape in chart.marks:
        y = _ROWS_TOP + height * shape.row + middle
        shapes.append(_shape(shape, across, y, thick, looks[shape.series]))
    label = f"{chart.title}: one row per {chart.heading}"
    legend = [(_look(n, series), series.name) for n, series in enumerate(chart.series)]
    legend = [entry for entry in legend if entry[1]] if len(legend) > 1 else []
    svg = picture(bottom + _ROWS_BOTTOM, label, *shapes)
    return Drawn(chart.title, svg, chart.table, chart.note, legend)


def _shape(shape: Mark, across: Scale, y: float, thick: float, look: str) -> Markup:
    """A mark in the middle `y` of its row, whose bars are `thick`."""
    x = across(shape.low)
    if shape.kind == "dot":
        return mark(x, y, shape.tip, look=look, series=shape.series, radius=6)
    if shape.kind == "seed":
        return mark(x, y + 9, shape.tip, look=look, series=shape.series, radius=2.5)
    size = {"x": x, "width": round(max(0.5, across(shape.high) - x), 2)}
    if shape.kind == "whisker":
        return element("rect", **size, y=y - 1.5, height=3, class_=f"whisker {look}")
    look = f"mark part {look} t{shape.series // 8 % 3}"
    place = {"y": y - thick / 2, "height": thick}
    about = {"data_tip": shape.tip, "data_s": shape.series}
    return element("rect", **size, **place, class_=look, **about)


def graph_chart(
    title: str, neighbours: Sequence[Sequence[int]], values: Mapping[int, float], column: str
) -> Drawn:
    """Clients on a circle; `neighbours` are those of each client, and `values` are of a column."""
    num, finite = len(neighbours), [v for v in values.values() if math.isfinite(v)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    angles = [2 * pi * client / num for client in range(num)]
    x = [round(WIDTH / 2 + _RADIUS * sin(angle), 1) for angle in angles]
    y = [round(_RADIUS + 20 - _RADIUS * cos(angle), 1) for angle in angles]
    links = [(k, other) for k, near in enumerate(neighbours) for other in near if k < other]
    lines = "".join(f"M{x[a]} {y[a]}L{x[b]} {y[b]}" for a, b in links)
    rows, dots = [], []
    for client, near in enumerate(neighbours):
        at = values.get(client, math.nan)
        shade = round((at - low) / ((high - low) or 1) * (_SHADES - 1)) if math.isfinite(at) else 0
        rows.append([f"client {client}", value(column, at), f"{len(near)} neighbours"])
        tip = ", ".join(rows[-1])
        dots.append(mark(x[client], y[client], tip, look=f"q{shade}", series=0, radius=_DOT))
    svg = picture(2 * (_RADIUS + 20), title, element("path", d=lines, class_="grid"), *dots)
    table = DataTable(title, ["client", column, "neighbours"], rows)
    ends = f"{value(column, low)} to {value(column, high)}"
    return Drawn(title, svg, table, f"Stronger colour: higher {column}, {ends}.")


def image_chart(title: str, png: bytes, table: DataTable) -> Drawn:
    """The picture of a PNG file."""
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    href = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    image = element("image", href=href, width=width, height=height)
    box = f"0 0 {width} {height}"
    svg = element("svg", image, viewBox=box, width="100%", role="img", aria_label=title)
    return Drawn(title, svg, table)
