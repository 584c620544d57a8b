"""A chart of lines, with bands for their intervals."""

import math
from collections.abc import Sequence
from functools import partial

from markupsafe import Markup

from flfast.output.report.chart import Chart, DataTable
from flfast.output.report.svg import WIDTH, Scale, colour, dash, element, grid, mark, picture, text
from flfast.output.results.formats import count, in_percent, tick, value
from flfast.output.results.lines import Line, LineChart, thinned

_HEIGHT = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 14, 48
_MOST_POINTS = 100
_FEW = 40


def line_chart(described: LineChart) -> Chart | None:
    """The chart of a description; None if no line has a point."""
    title, lines, x, y, note, _, log = described
    shown = [_thin(line) for line in lines]
    if not any(line.x for line in shown):
        return None
    xs = [place for line in shown for place in line.x]
    ys = [height for line in shown for height in line.y]
    across, up = _scales(xs, ys, shown, log=log)
    marks = [_draw(number, line, across, up, described) for number, line in enumerate(shown)]
    bottom = _HEIGHT - _BOTTOM
    svg = picture(
        _HEIGHT,
        f"{title}: {y} over {x}",
        *grid(up, (_LEFT, WIDTH - _RIGHT), vertical=False, form=partial(tick, y, values=ys)),
        *grid(across, (bottom, _TOP), vertical=True, form=partial(_place, x, values=xs)),
        text((_LEFT + WIDTH - _RIGHT) / 2, _HEIGHT - 8, x, "middle", class_="name"),
        *marks,
    )
    named = [(n, line.name) for n, line in enumerate(shown) if line.x]
    legend = named if len(lines) > 1 else []
    return Chart(title, svg, legend, _table(shown, described), note)


def _place(axis: str, x: float, values: Sequence[float] = ()) -> str:
    return tick(axis, x) if in_percent(axis, values or [x]) else count(x)


def _thin(line: Line) -> Line:
    finite = [n for n, y in enumerate(line.y) if math.isfinite(y)]
    kept = thinned(finite, _MOST_POINTS)
    x, y = [line.x[n] for n in kept], [line.y[n] for n in kept]
    low = [line.low[n] for n in kept] if line.low else y
    high = [line.high[n] for n in kept] if line.high else y
    return Line(line.name, x, y, low, high)


def _scales(
    x: Sequence[float], y: Sequence[float], lines: Sequence[Line], *, log: bool
) -> tuple[Scale, Scale]:
    # A wide interval in an early round must not flatten the lines.
    room = (max(y) - min(y)) or abs(max(y)) or 1.0
    ends = [v for line in lines for v in (*line.low, *line.high) if math.isfinite(v)]
    low = max(min([*y, *ends]), min(y) - 0.5 * room) - 0.03 * room
    high = min(max([*y, *ends]), max(y) + 0.5 * room) + 0.03 * room
    if min([*y, *ends]) >= 0:
        low = max(0.0, low)
    last = max(x) if max(x) > min(x) else min(x) + 1
    across = Scale(min(x), last, _LEFT, WIDTH - _RIGHT, log)
    return across, Scale(low, high, _HEIGHT - _BOTTOM, _TOP)


def _draw(number: int, line: Line, across: Scale, up: Scale, chart: LineChart) -> Markup:
    points = [(across(x), up(y)) for x, y in zip(line.x, line.y, strict=True)]
    path = _path(points, steps=chart.steps)
    band = [
        (across(x), up(low), up(high))
        for x, low, high in zip(line.x, line.low, line.high, strict=True)
        if math.isfinite(low) and math.isfinite(high)
    ]
    outline = [(x, low) for x, low, _ in band] + [(x, high) for x, _, high in reversed(band)]
    marks = [
        mark(x, y, _tip(line, n, chart), series=number, radius=2.6 if len(points) <= _FEW else 1.2)
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


def _cell(line: Line, place: int, column: str) -> str:
    low, high = line.low[place], line.high[place]
    mean = value(column, line.y[place])
    if not math.isfinite(low) or low == high:
        return mean
    return f"{mean} [{value(column, low)}, {value(column, high)}]"


def _tip(line: Line, place: int, chart: LineChart) -> str:
    name = f"{line.name}, " if line.name else ""
    return f"{name}{chart.x} {_place(chart.x, line.x[place])}: {_cell(line, place, chart.y)}"


def _table(lines: Sequence[Line], chart: LineChart) -> DataTable:
    cells: dict[float, dict[int, str]] = {}
    for number, line in enumerate(lines):
        for place, x in enumerate(line.x):
            cells.setdefault(x, {})[number] = _cell(line, place, chart.y)
    drawn = [number for number, line in enumerate(lines) if line.x]
    rows = [[_place(chart.x, x), *(cells[x].get(n, "") for n in drawn)] for x in sorted(cells)]
    headings = [chart.x, *(lines[n].name or chart.y for n in drawn)]
    return DataTable(chart.title, headings, rows)
