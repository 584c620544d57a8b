"""The common style of all figures, and charts drawn by matplotlib.

Matplotlib takes a second to import, and is therefore imported when the first figure is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flfast.output.results.charts import VIEW_COLOURS, Line, LineChart, Look, Mark, RowChart
from flfast.output.results.formats import in_percent
from flfast.output.results.lines import ROUNDS
from flfast.state.messages import naming, printable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST_NAME = 18
_FEW = 12  # points
_DRAWN = {False: "default", True: "steps-post"}
_DASHES = ("-", (0, (4, 2)), ":", "-.")
_THICK = 0.72  # of a row

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
_NUMBERED = (*(COLOURS[view] for view in VIEW_COLOURS[:7]), "#000000")
_OTHERS = {"idle": "#CFCFCF", "open": "#EBEBEB", "ink": INK}
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}

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
    "svg.hashsalt": "flfast",  # so that equal pictures are equal files
}


@contextmanager
def figure(
    path: Path,
    *,
    size: tuple[float, float],
    dpi: int,
    title: str,
    formats: Sequence[str] = ("png",),
) -> Iterator[Figure]:
    """Context with an empty figure, `size` in inches, which is saved at its end.

    There is a file for each format, `path` with its suffix.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        # Without pyplot there is no global state, no display, and no figure to close.
        drawn = Figure(figsize=size, dpi=dpi, layout="constrained")
        drawn.suptitle(title, fontsize=12, color=INK)
        yield drawn
        for form in formats:
            place = path.with_suffix(f".{form}")
            with naming(place):
                drawn.savefig(place, metadata=_UNDATED.get(form))


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


def draw_charts(
    picture: Figure, charts: Sequence[LineChart | RowChart], *, columns: int = 1, **grid: Any
) -> dict[str, Artist]:
    """Draw charts from left to right, then from top to bottom; `grid` is as for `subplots`.

    Returns what a legend needs: what was drawn, by name.
    """
    drawn: dict[str, Artist] = {}
    panels = picture.subplots(-(-len(charts) // columns), columns, squeeze=False, **grid)
    for axes, chart in zip(panels.flat, charts, strict=False):
        if isinstance(chart, LineChart):
            _draw_lines(axes, chart)
        else:
            draw_rows(axes, chart)
        handles, labels = axes.get_legend_handles_labels()
        drawn |= dict(zip(labels, handles, strict=True))
    return drawn


def _draw_lines(axes: Axes, chart: LineChart) -> None:
    for number, line in enumerate(chart.lines):
        colour = _colour(number, chart.lines)
        # Without markers, a single point would be invisible.
        marker = "o" if len(line.x) <= _FEW and not (line.thin or chart.steps) else ""
        look = {"marker": marker, "ms": 4, "drawstyle": _DRAWN[chart.steps], "color": colour}
        if line.thin:
            look |= {"linestyle": "--", "linewidth": 1.4}
        elif not line.view:  # one of many: lines differ in more than their colour
            look["linestyle"] = _DASHES[number % len(_DASHES)]
        axes.plot(line.x, line.y, label=line.name, **look)
        if not np.isnan(line.low).all():
            shade = {"color": colour, "alpha": 0.14, "linewidth": 0, "label": line.band}
            axes.fill_between(line.x, line.low, line.high, **shade)
    for x, y, text in chart.points:
        axes.plot(x, y, "o", color=COLOURS["local"])
        left = {"xytext": (8, -4)} if y <= 0.5 else {"xytext": (-8, 0), "ha": "right"}
        axes.annotate(text, (x, y), textcoords="offset points", fontsize=9, **left)
    axes.set_title(chart.title.replace("$", r"\$"))  # no formula
    axes.set_xlabel(chart.x)
    axes.set_ylabel("" if chart.y in chart.title.lower() else chart.y.replace("$", r"\$"))
    axes.grid(visible=True)
    _scale(axes, chart)


def _scale(axes: Axes, chart: LineChart) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter

    if chart.x == ROUNDS.name:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.log:
        low, high = axes.dataLim.intervalx
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    if in_percent(chart.y, chain.from_iterable(line.y for line in chart.lines)):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
        if "share" in chart.y:
            axes.set_ylim(0, 1.03)


def draw_rows(axes: Axes, chart: RowChart) -> None:
    """Draw a chart of rows."""
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.vlines(chart.lines, -1, len(chart.names), color="#B0B0B0", linewidth=0.7, zorder=0)
    for number, series in enumerate(chart.series):
        colour = _colour(number, chart.series)
        marks = [mark for mark in chart.marks if mark.series == number]
        if series.sign:
            places = [mark.low for mark in marks], [mark.row for mark in marks]
            look = {"color": colour, "s": 32, "zorder": 3, "label": series.name}
            axes.scatter(*places, marker=series.sign, **look)
        else:  # one collection, since a run may have thousands of bars
            look = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.5}
            corners = [*map(_corners, marks)]
            axes.add_collection(PolyCollection(corners, label=series.name, **look))
    axes.set_title(chart.title.replace("$", r"\$"))  # no formula
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.heading)
    axes.set_xlim(*chart.ends)
    axes.set_ylim(len(chart.names) - 0.4, -0.6)
    axes.set_yticks(range(len(chart.names)), labels=[tick_label(name) for name in chart.names])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=not chart.lines, axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(10 if chart.lines else 4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: chart.form(x)))
    axes.spines["left"].set_visible(False)


def _corners(bar: Mark) -> list[tuple[float, float]]:
    low, high = bar.row - _THICK / 2, bar.row + _THICK / 2
    return [(bar.low, low), (bar.high, low), (bar.high, high), (bar.low, high)]


def _colour(number: int, among: Sequence[Line | Look]) -> Any:
    from matplotlib import colormaps

    series, num = among[number], len(among)
    if series.view:
        return (COLOURS | _OTHERS)[series.view]
    if isinstance(series, Look) and series.shade is not None:
        return colormaps["viridis_r"](0.1 + 0.9 * series.shade)
    if num > len(_NUMBERED):
        return colormaps["viridis"](0.95 * number / (num - 1))
    return _NUMBERED[number]
