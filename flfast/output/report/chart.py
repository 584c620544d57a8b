"""What a chart consists of, whatever its kind."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup


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


class Chart(NamedTuple):
    """A picture with a legend and the same values as a table.

    Attributes:
        title: what is shown.
        svg: the picture.
        legend: number of each series' colour, and its name; empty if there is one series.
        table: the values.
        note: how to read it; may be empty.
    """

    title: str
    svg: Markup
    legend: Sequence[tuple[int, str]]
    table: DataTable
    note: str = ""


class Section(NamedTuple):
    """A part of the report.

    Attributes:
        title: its heading.
        intro: one or two sentences.
        charts: may be empty.
        tables: may be empty.
        folded: title and text of details that open on request.
    """

    title: str
    intro: str
    charts: Sequence[Chart] = ()
    tables: Sequence[DataTable] = ()
    folded: Sequence[tuple[str, str]] = ()

    @property
    def anchor(self) -> str:
        """Its id in the page."""
        return "-".join(self.title.lower().split())
