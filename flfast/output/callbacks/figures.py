"""The common style of all figures, and charts of lines.

Matplotlib takes a second to import, and is therefore imported when the first figure is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flfast.output.results.formats import in_percent
from flfast.output.results.lines import ROUNDS, LineChart
from flfast.state.messages import naming, printable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST_NAME = 18
_FEW = 12  # points
_DRAWN = {False: "default", True: "steps-post"}

# Okabe and Ito's palette, which colour-blind readers can distinguish.
COLOURS = {
    "global": "#0072B2",
    "local": "#D55E00",
    "personal": "#009E73",
    "finetuned": "#E69F00",
    "new": "#56B4E9",
    "new_finetuned": "#8B6F00",
    "val": "#CC79A7",
    "personal_val": "#6A51A3",
    "train": "#6B6B6B",
}
INK = "#333333"

STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#E4E4E4",
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 10,
}


@contextmanager
def figure(path: Path, *, size: tuple[float, float], dpi: int, title: str) -> Iterator[Figure]:
    """Context with an empty figure, `size` in inches, which is saved to `path` at its end."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        # Without pyplot there is no global state, no display, and no figure to close.
        drawn = Figure(figsize=size, dpi=dpi, layout="constrained")
        drawn.suptitle(title, fontsize=12, color=INK)
        yield drawn
        with naming(path):
            drawn.savefig(path)


def tick_label(name: str) -> str:
    r"""A name as matplotlib shows it: short, on one line, and no formula.

    >>> print(tick_label("ward_b"), tick_label("$x$ and a name that is long"))
    ward_b \$x\$ and a name th…
    """
    text = " ".join(printable(name).split())
    short = text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"
    return short.replace("$", r"\$")


def annotate(axes: Axes, counts: np.ndarray, *, dark: np.ndarray, size: int) -> None:
    """Write the counts [R, C] that are not 0 into the cells of a heat map, where `dark` in white.

    `dark` is bool [R, C], and `size` that of the font.
    """
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if dark[row, column] else INK
            axes.text(column, row, f"{count}", ha="center", va="center", color=color, size=size)


def sampled(num: int, most: int, title: str) -> tuple[np.ndarray, str]:
    """At most `most` of `num` clients, evenly, and the title, which tells if some are missing."""
    shown = np.linspace(0, num - 1, min(num, most)).round().astype(np.int64)
    left_out = f"\n{len(shown):,} of {num:,} clients" if len(shown) < num else ""
    return shown, f"{title}{left_out}"


Style = Mapping[str, Any]
"""Matplotlib's words for a line: at least `color`."""


def draw_charts(
    picture: Figure, charts: Sequence[LineChart], styles: Mapping[str, Style], *, columns: int = 1
) -> dict[str, Artist]:
    """Draw charts from left to right, then from top to bottom, with styles by name of a line.

    Returns what a legend needs: what was drawn, by name.
    """
    drawn: dict[str, Artist] = {}
    grid = picture.subplots(-(-len(charts) // columns), columns, squeeze=False)
    for axes, chart in zip(grid.flat, charts, strict=False):
        _draw_chart(axes, chart, styles)
        handles, labels = axes.get_legend_handles_labels()
        drawn |= dict(zip(labels, handles, strict=True))
    return drawn


def _draw_chart(axes: Axes, chart: LineChart, styles: Mapping[str, Style]) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    for line in chart.lines:
        style = styles[line.name]
        # Without markers, a single point would be invisible.
        marker = "o" if len(line.x) <= _FEW else ""
        drawn = {"marker": marker, "ms": 4, "drawstyle": _DRAWN[chart.steps]}
        axes.plot(line.x, line.y, **{"label": line.name, **drawn, **style})
        if not np.isnan(line.low).all():
            shade = {"color": style["color"], "alpha": 0.14, "linewidth": 0, "label": line.band}
            axes.fill_between(line.x, line.low, line.high, **shade)
    axes.set_title(chart.title.replace("$", r"\$"))  # no formula
    axes.set_xlabel(chart.x)
    axes.grid(visible=True)
    if chart.x == ROUNDS.name:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.log:
        axes.set_xscale("log")
    if in_percent(chart.y, chain.from_iterable(line.y for line in chart.lines)):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
