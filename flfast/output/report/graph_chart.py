"""A chart of a graph: clients on a circle, shaded by their values."""

from collections.abc import Mapping, Sequence
from math import cos, isfinite, pi, sin

from flfast.output.report.chart import Chart, DataTable
from flfast.output.report.svg import WIDTH, element, picture
from flfast.output.results.formats import value

_RADIUS, _DOT, _SHADES = 200, 7, 5


def graph_chart(
    title: str, neighbours: Sequence[Sequence[int]], values: Mapping[int, float], column: str
) -> Chart:
    """The chart; `neighbours` are those of each client, and `values` are of a column."""
    num, finite = len(neighbours), [v for v in values.values() if isfinite(v)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    angles = [2 * pi * client / num for client in range(num)]
    x = [round(WIDTH / 2 + _RADIUS * sin(angle), 1) for angle in angles]
    y = [round(_RADIUS + 20 - _RADIUS * cos(angle), 1) for angle in angles]
    links = [(k, other) for k, others in enumerate(neighbours) for other in others if k < other]
    lines = "".join(f"M{x[a]} {y[a]}L{x[b]} {y[b]}" for a, b in links)
    rows, dots = [], []
    for client, others in enumerate(neighbours):
        own = values.get(client, float("nan"))
        shade = round((own - low) / ((high - low) or 1) * (_SHADES - 1)) if isfinite(own) else 0
        row = [f"client {client}", value(column, own), f"{len(others)} neighbours"]
        look = {"r": _DOT, "class_": f"mark q{shade}", "data_tip": ", ".join(row), "data_s": 0}
        dots.append(element("circle", cx=x[client], cy=y[client], **look))
        rows.append(row)
    svg = picture(2 * (_RADIUS + 20), title, element("path", d=lines, class_="grid"), *dots)
    note = f"Stronger colour: higher {column}, {value(column, low)} to {value(column, high)}."
    return Chart(title, svg, [], DataTable(title, ["client", column, "neighbours"], rows), note)
