"""Draws `events.png`: who works when in virtual time, and how stale uploads are."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from flfast.output.callbacks.events_table import EventsTable
from flfast.output.callbacks.figures import COLOURS, INK, figure
from flfast.output.results.formats import unit
from flfast.output.results.history import series
from flfast.output.results.table import iterate_rows
from flfast.state.messages import first_line
from flfast.state.options import Count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flfast.federation.loop import Federation

log = logging.getLogger(__name__)

_HEIGHT = 0.66
_MARKS = {"failure": ("x", COLOURS["local"], "failed"), "late": ("|", INK, "late")}
_MAX_COLOURS = 5


class Bar(NamedTuple):
    """A client at work.

    Attributes:
        client: its id.
        start: virtual seconds of the dispatch.
        end: virtual seconds of the arrival or failure, or those when the client was too late;
            None if it is still at work.
        kind: kind of the event that ends it; `working` if there is none yet.
        staleness: staleness of the upload; 0 if there is none.
    """

    client: int
    start: float
    end: float | None = None
    kind: str = "working"
    staleness: int = 0


class EventsFigure(Callback):
    """Draws the beginning of `events.csv` at the end of the run, if it was written.

    The figure of a resumed run is therefore that of a run that never stopped.

    It shows the clients that begin first, and the first steps of the server.
    """

    def __init__(self, *, max_clients: Count, max_steps: Count, dpi: Count) -> None:
        super().__init__()
        self._max_clients, self._max_steps, self._dpi = max_clients, max_steps, dpi

    @rank_zero_only
    def on_run_end(self, federation: Federation) -> None:
        """Write the figure."""
        path = federation.run_dir / EventsTable.file_name
        num_steps = len(series(federation.history, "clock/seconds")[0])
        if not num_steps or not path.exists():
            return
        shown = min(num_steps, self._max_steps)
        try:
            bars, steps = read_bars(
                iterate_rows(path), max_clients=self._max_clients, max_steps=shown
            )
        except (KeyError, TypeError, ValueError) as error:
            log.warning("events.png is not drawn: %s is no table: %s", path, first_line(error))
            return
        title = federation.title
        if shown < num_steps:
            title += f"\nfirst {shown:,} of {num_steps:,} steps of the server"
        if bars and steps:
            place = federation.run_dir / "events.png"
            draw_events(place, bars=bars, steps=steps, title=title, dpi=self._dpi)


def read_bars(
    rows: Iterable[Mapping[str, str]], *, max_clients: int, max_steps: int
) -> tuple[list[Bar], list[float]]:
    """The work of the clients that begin first, and the times of the server's first steps.

    Of `events.csv`, no more rows are read than needed.

    Raises:
        KeyError: if a column is missing.
        TypeError: if a row is too short.
        ValueError: if a value is no number.
    """
    shown: set[int] = set()
    working: dict[int, Bar] = {}
    done: list[Bar] = []
    steps: list[float] = []
    for row in rows:
        seconds, kind = float(row["seconds"]), row["kind"]
        if not math.isfinite(seconds):
            raise ValueError(f"seconds={seconds}")
        if kind == "step":
            steps.append(seconds)
            if len(steps) == max_steps:
                break
            continue
        client = int(row["client_id"])
        if kind == "dispatch" and (client in shown or len(shown) < max_clients):
            shown.add(client)
            working[client] = Bar(client, seconds)
        elif kind != "dispatch" and client in working:
            staleness = int(row["staleness"] or 0)
            bar = working.pop(client)
            done.append(bar._replace(end=seconds, kind=kind, staleness=staleness))
    return [*done, *working.values()], steps


def draw_events(
    path: Path, *, bars: Sequence[Bar], steps: Sequence[float], title: str, dpi: int
) -> None:
    """Write a PNG; `steps` are virtual seconds of the server's steps, at least one, ascending."""
    from matplotlib.ticker import MaxNLocator

    size, name = unit(steps[-1])
    ordered = sorted(bars, key=lambda bar: (bar.start, bar.client))
    clients = list(dict.fromkeys(bar.client for bar in ordered))
    lines = {client: line for line, client in enumerate(clients)}
    height = min(2.2 + 0.2 * len(clients), 40)
    with figure(path, size=(11, height), dpi=dpi, title=title) as picture:
        axes = picture.subplots()
        ends = np.array(steps) / size
        axes.vlines(ends, -1, len(clients), color="#B0B0B0", linewidth=0.7, zorder=0)
        _draw_bars(axes, bars, lines, size=size, end=steps[-1])
        _draw_marks(axes, bars, lines, size=size)
        axes.set_yticks(range(len(clients)), labels=[str(client) for client in clients])
        axes.tick_params(axis="y", length=0, labelsize=8)
        axes.set_ylim(len(clients) - 0.4, -0.6)
        axes.set_xlim(0, max(ends[-1], 1e-9) * 1.01)
        axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
        axes.set_xlabel(f"virtual time [{name}]; vertical lines: steps of the server")
        axes.set_ylabel("client")
        axes.spines["left"].set_visible(False)
        picture.legend(loc="outside lower center", ncols=6, handlelength=1, columnspacing=1)


def _draw_bars(
    axes: Axes, bars: Sequence[Bar], lines: Mapping[int, int], *, size: float, end: float
) -> None:
    """One collection per colour, since a run may have thousands of bars."""
    from matplotlib.collections import PolyCollection

    most = max((bar.staleness for bar in bars), default=0)
    groups: dict[str, tuple[str, list[Bar]]] = {}
    for bar in sorted(bars, key=lambda bar: bar.staleness):
        label, colour = _look(bar, most)
        groups.setdefault(label, (colour, []))[1].append(bar)
    for label in sorted(groups, key=lambda label: label in _OTHERS):
        colour, members = groups[label]
        corners = []
        for bar in members:
            low, high = lines[bar.client] - _HEIGHT / 2, lines[bar.client] + _HEIGHT / 2
            left, right = bar.start / size, (end if bar.end is None else bar.end) / size
            corners.append([(left, low), (right, low), (right, high), (left, high)])
        shapes = PolyCollection(corners, facecolor=colour, edgecolor="white", label=label)
        shapes.set_linewidth(0.5)
        axes.add_collection(shapes)


_OTHERS = {"no upload": "#CFCFCF", "still at work": "#EBEBEB"}


def _look(bar: Bar, most: int) -> tuple[str, str]:
    """Legend and colour of a bar; neighbouring values share a colour if there are many."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if bar.kind != "arrival":
        label = "still at work" if bar.end is None else "no upload"
        return label, _OTHERS[label]
    if not most:
        return "at work", COLOURS["global"]
    width = most // _MAX_COLOURS + 1
    low = bar.staleness // width * width
    high = min(low + width - 1, most)
    values = f"{low}" if low == high else f"{low} to {high}"
    return f"staleness {values}", to_hex(colormaps["viridis_r"](0.1 + 0.9 * low / most))


def _draw_marks(axes: Axes, bars: Sequence[Bar], lines: Mapping[int, int], *, size: float) -> None:
    for kind, (marker, colour, label) in _MARKS.items():
        places = [
            (bar.end / size, lines[bar.client])
            for bar in bars
            if bar.kind == kind and bar.end is not None
        ]
        if places:
            x, y = zip(*places, strict=True)
            axes.scatter(x, y, marker=marker, color=colour, s=32, zorder=3, label=label)
