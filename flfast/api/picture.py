"""Draws a run's curves into a figure that notebooks show."""

import io
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from flfast.config.errors import ConfigError
from flfast.output.callbacks.curves import curves_size, draw_curves
from flfast.output.callbacks.figures import INK, STYLE
from flfast.output.results.history import Row
from flfast.output.results.lines import run_charts


class Picture(Figure):
    """A figure without pyplot, which IPython shows by itself."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def draw(history: Sequence[Row], *, title: str) -> Picture:
    """Accuracy and loss over rounds, and over virtual time if the run had a clock.

    Raises:
        ConfigError: if no accuracy and no loss was measured.
    """
    charts = run_charts([history])
    if not charts:
        raise ConfigError("the run measured no loss, so there is nothing to draw")
    with mpl.rc_context(STYLE):
        picture = Picture(figsize=curves_size(charts), dpi=100, layout="constrained")
        picture.suptitle(title, fontsize=12, color=INK)
        draw_curves(picture, charts)
    return picture
