"""Draws `curves.png`: accuracy or another metric, and loss over rounds and virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_only

from flfast.output.callbacks.figures import draw_charts
from flfast.output.callbacks.run_picture import RunPicture, or_warn
from flfast.output.results.charts import LineChart
from flfast.output.results.lines import run_charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flfast.federation.loop import Federation


class Curves(RunPicture):
    """Draws accuracy, or the task's other metric, and loss at the end of the run.

    The figure is 11 x 4.8 inches, or 11 x 8.8 if the run has a clock.
    """

    file_name = "curves.png"

    @rank_zero_only
    @or_warn
    def on_run_end(self, federation: Federation) -> None:
        """Write the figure, if any metric was measured."""
        charts = run_charts([federation.history])
        if charts:
            with self.picture(federation, size=curves_size(charts)) as picture:
                draw_curves(picture, charts)


def curves_size(charts: Sequence[LineChart]) -> tuple[float, float]:
    """Width and height of the figure, inches."""
    columns = _columns(charts)
    return 5.5 * columns, 0.8 + 4 * -(-len(charts) // columns)


def _columns(charts: Sequence[LineChart]) -> int:
    return min(4, len({chart.y for chart in charts}))


def draw_curves(picture: Figure, charts: Sequence[LineChart]) -> None:
    """Draw the charts of a run, with one legend outside of them so that it covers no line."""
    drawn = draw_charts(picture, charts, columns=_columns(charts))
    picture.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=4)
