"""A chart of horizontal bars, divided into parts."""

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from flfast.output.report.chart import Chart, DataTable
from flfast.output.report.svg import WIDTH, Scale, colour, element, grid, picture, text

_RIGHT, _TOP, _BOTTOM = 14, 4, 26


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
        title: of the chart.
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
