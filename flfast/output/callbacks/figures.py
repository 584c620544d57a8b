"""The common style of all figures.

Matplotlib takes a second to import, and is therefore imported when the first figure is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flfast.state.messages import naming, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST_NAME = 18

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
    """Context with an empty figure, which is saved to `path` when the context ends.

    Args:
        path: path of the PNG file.
        size: width and height, inches.
        dpi: pixels per inch.
        title: title above the whole figure.
    """
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


def style_axes(axes: Axes, *, title: str, percent: bool, over: str | None = None) -> None:
    """Style axes whose x is the round, or something else.

    Args:
        axes: changed in place.
        title: name of the y values.
        percent: whether y values are fractions, to be labelled in percent.
        over: name and unit of x, such as `virtual time [s]`; None if x is the round.
    """
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.set_title(title)
    axes.set_xlabel(over or "round")
    axes.grid(visible=True)
    if over is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
