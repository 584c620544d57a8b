"""How a run or a sweep looks on the screen while it is followed, and tables alike at its end.

Torch-free.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flfast.output.results.charts import DataTable
from flfast.output.results.columns import VIEWS
from flfast.output.results.formats import count, readable, value
from flfast.output.results.history import Row, is_measured, last_value, number, score_names
from flfast.output.watch.folder import Progress
from flfast.state.messages import printable

_ROWS = 8
_BAR_WIDTH = 40
_STYLES = {"waits": "dim", "starts": "cyan", "running": "green", "finished": "bold"}
_ENDED = "bold red"


def screen(*, plain_width: int) -> Console:
    """The terminal or notebook; where there is none, plain text of `plain_width` characters."""
    console = Console()
    shows = console.is_terminal or console.is_jupyter
    return console if shows else Console(width=plain_width)


def on_screen(table: DataTable, styles: Mapping[str, str] | None = None) -> Table:
    """A table as rich prints it; cells with the texts of `styles` have these styles."""
    look: dict[str, Any] = {"title_justify": "left", "box": box.SIMPLE_HEAD, "pad_edge": False}
    shown = Table(title=table.caption or None, **look)
    for place, name in enumerate(table.headings):
        shown.add_column(Text(name), justify="left" if place < table.words else "right")
    for row in table.rows:
        shown.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    return shown


def view(jobs: Sequence[Progress]) -> RenderableType:
    """One run in detail, or a line for each job of a sweep."""
    return _run(jobs[0]) if len(jobs) == 1 else sweep_table(jobs)


def line(job: Progress) -> str:
    """The last round of a run in one line of text."""
    return "  ".join([_position(job), *scores(job.history[-1:]), *_costs(job)])


def _run(job: Progress) -> RenderableType:
    names = score_columns(job.history)
    rows = []
    for row in job.history[-_ROWS:]:
        counts = (count(number(row, f"cohort/{name}")) for name in ("clients", "rejected"))
        seconds = number(row, "time/train_s")
        time = f"{seconds:.3g}" if math.isfinite(seconds) else "-"
        rows.append([str(row["round"]), *(value(n, number(row, n)) for n in names), time, *counts])
    headings = ["round", *names, "seconds", "clients", "rejected"]
    table = on_screen(DataTable("", headings, rows, words=0))
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        Text(job.status, style=_STYLES.get(job.status, _ENDED)),
        ProgressBar(total=max(job.rounds, 1), completed=max(job.last, 0), width=_BAR_WIDTH),
        Text("  ".join([_position(job), *_costs(job)])),
    )
    warnings = [Text(text, style="yellow") for text in job.warnings]
    title = Text(f"{printable(str(job.folder))}  {' '.join(job.overrides)}", style="italic")
    return Group(title, bar, table if job.history else "", *warnings, *_advice(job))


def _advice(job: Progress) -> list[Text]:
    if job.status not in {"stopped", "failed", "killed"}:
        return []
    sweep = job.folder.parent if (job.folder.parent / "multirun.yaml").exists() else None
    place = f"hydra.sweep.dir={sweep}" if sweep else f"hydra.run.dir={job.folder}"
    return [Text(f"go on with: resume=auto {printable(shlex.quote(place))}", style="bold")]


def sweep_table(jobs: Sequence[Progress]) -> Table:
    """A row for each job: the overrides that not all have, how far it is, and its last values."""
    shared = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
    names = list(dict.fromkeys(name for job in jobs for name in score_columns(job.history)))
    rows = [
        [
            printable(job.folder.name),
            " ".join(word for word in job.overrides if word not in shared),
            job.status,
            f"{max(job.last, 0)} of {job.rounds}",
            *(value(name, last_value(job.history, name)) for name in names),
            readable(job.seconds_left if job.status == "running" else math.nan),
        ]
        for job in jobs
    ]
    headings = ["job", "settings", "status", "rounds", *names, "left"]
    styles = {job.status: _STYLES.get(job.status, _ENDED) for job in jobs}
    return on_screen(DataTable("", headings, rows, words=3), styles)


def score_columns(history: Sequence[Row]) -> list[str]:
    """Training loss, and up to three accuracies or the like, or else losses, of a run."""
    names = score_names([history])[:3] or ["loss"]
    columns = (f"{view}/{name}" for name in names for view in VIEWS)
    return [column for column in ("train/loss", *columns) if is_measured([history], column)]


def scores(history: Sequence[Row]) -> list[str]:
    """The last values of these columns, with their names."""
    return [f"{name} {value(name, last_value(history, name))}" for name in score_columns(history)]


def usage(row: Row) -> list[str]:
    """Memory and utilisation, as far as a round measures them."""
    found = {
        "memory": "monitor/rank0_memory_bytes",
        "GPU": "monitor/gpu_percent",
        "GPU memory": "monitor/gpu_memory_bytes",
    }
    return _known({f"{name} {{}}": value(c, number(row, c)) for name, c in found.items()})


def virtual(row: Row) -> list[str]:
    """Virtual time, staleness and clients at work, as far as a round has them."""
    found = {
        "virtual {}": "clock/seconds",
        "staleness {}": "clock/staleness",
        "{} in flight": "clock/in_flight",
    }
    return _known({text: value(c, number(row, c)) for text, c in found.items()})


def _position(job: Progress) -> str:
    return f"round {max(job.last, 0)} of {job.rounds}"


def _costs(job: Progress) -> list[str]:
    """Time, memory and utilisation, as far as the run measures them."""
    row = job.history[-1] if job.history else {}
    left = readable(job.seconds_left) if job.status == "running" else "-"
    times = _known({"{} a round": readable(job.seconds_a_round), "{} left": left})
    return [*times, *usage(row), *virtual(row)]


def _known(texts: Mapping[str, str]) -> list[str]:
    return [text.format(shown) for text, shown in texts.items() if shown != "-"]
