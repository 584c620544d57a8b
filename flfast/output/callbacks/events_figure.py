"""Draws `events.png`: who works when in virtual time, and how stale uploads are."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lightning.pytorch.utilities import rank_zero_only

from flfast.output.callbacks.events_table import EventsTable
from flfast.output.callbacks.figures import draw_charts
from flfast.output.callbacks.run_picture import RunPicture, or_warn
from flfast.output.results.charts import Look, Mark, RowChart
from flfast.output.results.formats import unit
from flfast.output.results.history import series
from flfast.output.results.table import iterate_rows
from flfast.state.messages import first_line
from flfast.state.options import Count, Formats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flfast.federation.loop import Federation

log = logging.getLogger(__name__)

_IDLE, _OPEN = Look("no upload", "idle"), Look("still at work", "open")
_MARKS = {
    "failure": Look("failed", "local", sign="x"),
    "late": Look("late", "ink", sign="|"),
}
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


class EventsFigure(RunPicture):
    """Draws the beginning of `events.csv` at the end of the run, if it was written.

    The figure of a resumed run is therefore that of a run that never stopped.

    It shows the clients that begin first, and the first steps of the server.
    """

    file_name = "events.png"

    def __init__(
        self, *, max_clients: Count, max_steps: Count, dpi: Count, formats: Formats
    ) -> None:
        super().__init__(dpi=dpi, formats=formats)
        self._max_clients, self._max_steps = max_clients, max_steps

    @rank_zero_only
    @or_warn
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
            chart = events_chart(bars, steps)
            height = min(2.2 + 0.2 * len(chart.names), 40)
            with self.picture(federation, size=(11, height), title=title) as picture:
                draw_events(picture, chart)


def draw_events(picture: Figure, chart: RowChart) -> None:
    """Draw `events_chart`."""
    drawn = draw_charts(picture, [chart])
    picture.axes[0].tick_params(axis="y", labelsize=8)
    look = {"handlelength": 1, "columnspacing": 1}
    picture.legend(drawn.values(), drawn, loc="outside lower center", ncols=6, **look)


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


def events_chart(bars: Sequence[Bar], steps: Sequence[float]) -> RowChart:
    """A row for each client; `steps` are virtual seconds of the server's steps, at least one."""
    size, name = unit(steps[-1])
    ordered = sorted(bars, key=lambda bar: (bar.start, bar.client))
    rows = {client: row for row, client in enumerate(dict.fromkeys(bar.client for bar in ordered))}
    most = max((bar.staleness for bar in bars), default=0)
    looks = {_look(bar, most) for bar in bars}
    signs = [sign for kind, sign in _MARKS.items() if any(bar.kind == kind for bar in bars)]
    series = [*(look for _, look in sorted(looks, key=lambda look: look[0])), *signs]
    places = {look: number for number, look in enumerate(series)}
    marks = []
    for bar in bars:
        row, look = rows[bar.client], _look(bar, most)[1]
        start, end = bar.start / size, (steps[-1] if bar.end is None else bar.end) / size
        marks.append(Mark(row, places[look], start, end))
        if bar.kind in _MARKS:
            marks.append(Mark(row, places[_MARKS[bar.kind]], end, end, kind="dot"))
    return RowChart(
        "",
        f"virtual time [{name}]; vertical lines: steps of the server",
        [str(client) for client in rows],
        "client",
        series,
        "{:g}".format,
        marks,
        (0, max(steps[-1] / size, 1e-9) * 1.01),
        [step / size for step in steps],
    )


def _look(bar: Bar, most: int) -> tuple[int, Look]:
    """Place and look in the legend; neighbouring values share a colour if there are many."""
    if bar.kind != "arrival":
        return (most + 2, _OPEN) if bar.end is None else (most + 1, _IDLE)
    if not most:
        return 0, Look("at work", "global")
    width = most // _MAX_COLOURS + 1
    low = bar.staleness // width * width
    high = min(low + width - 1, most)
    values = f"{low}" if low == high else f"{low} to {high}"
    return low, Look(f"staleness {values}", shade=low / most)
