"""What figures and tables show, as values. Torch-free.

`report/drawn.py` makes SVG of a chart for a page, `callbacks/figures.py` draws it into a picture.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

VIEW_COLOURS = (
    *("global", "local", "personal", "val", "finetuned", "new", "train", "new_finetuned"),
    "personal_val",
)
"""Views in the order of their colours, on a page and in a picture alike."""


class DataTable(NamedTuple):
    """A table of text.

    Attributes:
        caption: what the table shows.
        headings: headings of the columns; the first one is that of the rows' names.
        rows: cells, as many as there are headings.
        words: number of the columns of text, which come first, before those of numbers.
    """

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1


class Line(NamedTuple):
    """A series over an axis.

    Attributes:
        name: in the legend.
        x: places.
        y: values.
        low: lower ends of the values' intervals; empty, or NaN where there is none.
        high: upper ends, likewise.
        band: what the intervals are, for the legend of a picture; may be empty.
        view: whose colour it has, of `VIEW_COLOURS`; empty: that of its number.
        thin: whether it accompanies another line of the view; it is then dashed.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    band: str = ""
    view: str = ""
    thin: bool = False


class LineChart(NamedTuple):
    """Lines.

    Attributes:
        title: title of the chart.
        lines: in the order of their colours.
        x: name of the x axis.
        y: name of the y axis, such as a column.
        note: how to read it.
        steps: whether a value holds until the next one.
        log: whether x is logarithmic.
        points: places, values and texts of points that are named.
    """

    title: str
    lines: Sequence[Line]
    x: str
    y: str
    note: str = ""
    steps: bool = False
    log: bool = False
    points: Sequence[tuple[float, float, str]] = ()


class Look(NamedTuple):
    """What marks of one look are.

    Attributes:
        name: in the legend; empty: not there.
        view: whose colour it has, of `VIEW_COLOURS`, or in a picture `idle`, `open` or `ink`;
            empty: that of its number.
        shade: place in [0, 1] on a scale of light to dark colours of a picture, instead of that.
        sign: of its dots in a picture: `x` or `|`; empty: its marks are bars.
    """

    name: str
    view: str = ""
    shade: float | None = None
    sign: str = ""


class Mark(NamedTuple):
    """A bar, a whisker or a dot in a row. A picture draws bars, and dots of a look with a sign.

    Attributes:
        row: number of the row.
        series: number of its series.
        low: where it begins; place of a dot.
        high: where it ends.
        tip: its text where it is pointed at; a whisker has none.
        kind: `bar`, `whisker`, `dot`, or `seed`, which is a small dot below.
    """

    row: int
    series: int
    low: float
    high: float
    tip: str = ""
    kind: str = "bar"


class RowChart(NamedTuple):
    """Rows with horizontal bars, whiskers and dots.

    Attributes:
        title: title of the chart.
        x: name of the x axis.
        names: of the rows, from top to bottom.
        heading: what a row is, such as `client`.
        series: in the order of their colours.
        form: a value of the x axis as text.
        marks: what is in the rows.
        ends: ends of the x axis.
        lines: vertical lines, on the x axis.
        above: whether names stand above the rows, for long names.
        note: how to read it.
        table: the values, for a page.
    """

    title: str
    x: str
    names: Sequence[str]
    heading: str
    series: Sequence[Look]
    form: Callable[[float], str]
    marks: Sequence[Mark] = ()
    ends: tuple[float, float] = (0.0, 1.0)
    lines: Sequence[float] = ()
    above: bool = False
    note: str = ""
    table: DataTable = DataTable("", (), ())

    def stacked(self, lengths: Sequence[Sequence[float]]) -> "RowChart":
        """The chart with bars of these lengths, one per row and series, one behind the other."""
        series, marks = [each.name for each in self.series], list[Mark]()
        for row, parts in enumerate(lengths):
            starts = accumulate(parts, initial=0.0)
            for number, (start, length) in enumerate(zip(starts, parts, strict=False)):
                tip = f"{self.names[row]}, {series[number]}: {self.form(length)}"
                marks += [Mark(row, number, start, start + length, tip)] * (length > 0)
        cells = [[name, *map(self.form, p)] for name, p in zip(self.names, lengths, strict=True)]
        table = DataTable(self.title, [self.heading, *series], cells)
        longest = max(map(sum, lengths), default=0.0)
        return self._replace(marks=marks, ends=(0.0, longest), table=table)
