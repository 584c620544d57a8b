"""Figure of a sweep: accuracy or loss over rounds, virtual time and uploaded bytes.

A line stands for a group of settings. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flfast.output.callbacks.figures import figure, style_axes
from flfast.output.results.criterion import choose_criterion, is_measured
from flfast.output.results.durations import unit
from flfast.output.results.history import clock
from flfast.output.results.sweep import (
    Job,
    Spread,
    group_by_settings,
    mean_over_bytes,
    mean_over_time,
    mean_series,
    varying_keys,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DPI = 150


class _View(NamedTuple):
    """One part of the figure.

    Attributes:
        curve: (jobs, column) -> places on the x axis, and values.
        over: name and unit of x; None for rounds.
        unit: of x, in units of the curve.
        log: whether x is logarithmic.
    """

    curve: Callable[[Sequence[Job], str], tuple[Sequence[float], list[Spread]]]
    over: str | None = None
    unit: float = 1
    log: bool = False


def draw_comparison(jobs: Sequence[Job], path: Path) -> None:
    """Write a PNG; lines are means over seeds, bands one standard deviation around them.

    `choose_criterion` chooses the columns; if there are two, the legend says which one a line
    shows. No file is written if no job has measured any. If any job has a clock, a second part
    shows the same over virtual time. If jobs differ in their compression, another one shows it
    over the bytes that clients have uploaded.
    """
    criterion = choose_criterion(jobs)
    if criterion is None:
        return
    columns = criterion.columns
    keys = [key for key in varying_keys(jobs) if key != "seed"]
    groups = group_by_settings(jobs)
    # The legend has a line for every key of every group, 0.2 inches each.
    height = max(4.8, 0.6 + 0.21 * len(groups) * (len(keys) + len(columns) - 1))
    views = _views(jobs, keys)
    with figure(path, size=(4 + 5 * len(views), height), dpi=_DPI, title="") as picture:
        parts = picture.subplots(1, len(views), squeeze=False)[0]
        colors = _colors(len(groups))
        for (values, members), color in zip(groups.items(), colors, strict=True):
            done = [job for job in members if job.counts]
            measured = (c for c in columns if all(is_measured(job, c) for job in done))
            column = next(measured, columns[0])
            label: str | None = _label(keys, values) + f"\n{column}" * (len(columns) > 1)
            for axes, view in zip(parts, views, strict=True):
                places, means = view.curve(done, column)
                places = [place / view.unit for place in places]
                _plot_line(axes, places, means, color=color, label=label)
                label = None
        seeds = any(len(members) > 1 for members in groups.values())
        title = " or ".join(columns)
        title = f"{title}, mean ± std over seeds" if seeds else title
        for axes, view in zip(parts, views, strict=True):
            if view.log:
                axes.set_xscale("log")
            style_axes(axes, title=title, percent=criterion.rises, over=view.over)
        if keys:
            picture.legend(loc="outside right upper")


def _views(jobs: Sequence[Job], keys: Sequence[str]) -> list[_View]:
    """The parts of the figure for jobs that differ in these keys."""
    views = [_View(mean_series)]
    latest = max((s for job in jobs for s in clock(job.history).values()), default=math.nan)
    if not math.isnan(latest):
        seconds, name = unit(latest)
        views.append(_View(mean_over_time, f"virtual time [{name}]", seconds))
    if any(key.partition(".")[0] == "compression" for key in keys):
        views.append(_View(mean_over_bytes, "uploaded by all clients [MB]", 1e6, log=True))
    return views


def _plot_line(
    axes: Axes,
    places: Sequence[float],
    values: Sequence[Spread],
    *,
    color: str,
    label: str | None = None,
) -> None:
    marker = "o" if len(places) <= 12 else ""
    means = [v.mean for v in values]
    axes.plot(places, means, color=color, label=label, marker=marker, markersize=4)
    # With a single seed the deviation is NaN, and nothing is filled.
    low, high = [v.mean - v.std for v in values], [v.mean + v.std for v in values]
    axes.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)


def _label(keys: Sequence[str], values: Sequence[str]) -> str:
    short = [key.rpartition(".")[2] for key in keys]
    names = [
        last if short.count(last) == 1 else key for key, last in zip(keys, short, strict=True)
    ]
    return "\n".join(f"{name}={value or '-'}" for name, value in zip(names, values, strict=True))


def _colors(num: int) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if num <= 8:
        okabe = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #6B6B6B #000000"
        return okabe.split()[:num]
    return [to_hex(colormaps["viridis"](0.95 * position / (num - 1))) for position in range(num)]
