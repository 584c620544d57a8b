"""A chart of a graph: vertices on a circle, shaded by their values."""

from collections.abc import Callable, Mapping, Sequence
from math import cos, isfinite, pi, sin

from flfast.output.report.chart import Chart, DataTable
from flfast.output.report.svg import WIDTH, element, picture

_RADIUS, _INNER, _DOT = 200, 80, 7
_SHADES = 5


def graph_chart(
    title: str,
    num_clients: int,
    links: Sequence[Sequence[int]],
    values: Mapping[int, float],
    column: str,
    form: Callable[[float], str],
) -> Chart:
    """The chart: clients on a circle, and servers on a smaller one.

    Args:
        title: title of the chart.
        num_clients: vertices from this number on are servers.
        links: pairs of vertices, from 0.
        values: value of each client that has one.
        column: what the values are.
        form: a value as text.
    """
    linked: dict[int, list[int]] = {vertex: [] for vertex in range(num_clients)}
    for one, other in links:
        linked.setdefault(one, []).append(other)
        linked.setdefault(other, []).append(one)
    servers = sorted(linked.keys() - range(num_clients))
    # The clients of a server stand together; without servers, ids are in order.
    order = sorted(range(num_clients), key=lambda k: (linked[k] if servers else [], k))
    at = {**_circle(order, _RADIUS), **_circle(servers, _INNER)}
    lines = "".join("M{} {}L{} {}".format(*at[one], *at[other]) for one, other in links)
    finite = [value for value in values.values() if isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    rows, dots = [], []
    for vertex in [*servers, *order]:
        value = values.get(vertex, float("nan"))
        shown = form(value) if isfinite(value) else "-"
        shade = round((value - low) / ((high - low) or 1) * (_SHADES - 1)) if shown != "-" else 0
        name = f"server {vertex - num_clients}" if vertex >= num_clients else f"client {vertex}"
        num = len(linked[vertex])
        tip = f"{name}: {num} links" if vertex >= num_clients else f"{name}: {shown}, {num} links"
        place = dict(zip(("cx", "cy"), at[vertex], strict=True))
        look = {"r": _DOT, "class_": f"mark q{shade}", "data_tip": tip, "data_s": 0}
        dots.append(element("circle", **place, **look))
        rows.append([name, shown, str(num)])
    svg = picture(2 * (_RADIUS + 20), title, element("path", d=lines, class_="grid"), *dots)
    ends = f"{form(low)} to {form(high)}"
    note = f"The stronger the colour, the higher is {column}: {ends}." if finite else ""
    return Chart(title, svg, [], DataTable(title, ["", column, "links"], rows), note)


def _circle(vertices: Sequence[int], radius: int) -> dict[int, tuple[float, float]]:
    """Place of each vertex, clockwise from the top."""
    angles = {vertex: 2 * pi * n / len(vertices) for n, vertex in enumerate(vertices)}
    return {
        vertex: (round(WIDTH / 2 + radius * sin(a), 1), round(_RADIUS + 20 - radius * cos(a), 1))
        for vertex, a in angles.items()
    }
