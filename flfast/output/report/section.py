"""A part of a report: charts and tables under a heading."""

from collections.abc import Sequence
from typing import NamedTuple

from flfast.output.report.drawn import Chart
from flfast.output.results.charts import DataTable


class Section(NamedTuple):
    """A part of the report.

    Attributes:
        title: its heading.
        intro: one or two sentences.
        charts: may be empty; one that has nothing to show is left out.
        tables: likewise, one without rows.
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
