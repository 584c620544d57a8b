"""How a run or a sweep looks on the screen while it is followed. Torch-free."""

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flfast.output.callbacks.screen import cell, empty_table
from flfast.output.results.columns import VIEWS
from flfast.output.results.durations import readable
from flfast.output.results.history import Row, clock, last_value, number, series
from flfast.output.watch.folder import Progress
from flfast.state.messages import printable

_ROWS = 8
_BAR_WIDTH = 40
_STYLES = {"starts": "cyan", "running": "green", "finished": "bold"}
_ENDED = "bold red"


def view(jobs: Sequence[Progress]) -> RenderableType:
    """One run in detail, or a line for each job of a sweep."""
    return _run(jobs[0]) if len(jobs) == 1 else _sweep(jobs)


def line(job: Progress) -> str:
    """The last round of a run in one line of text."""
    row = job.history[-1]
    scores = (
        f"{name} {cell(name, number(row, name))}" for name in _scores(job) if _has(row, name)
    )
    return "  ".join([_position(job), *scores, *_costs(job)])


def _run(job: Progress) -> RenderableType:
    names = _scores(job)
    table = empty_table([], ["round", *names, "seconds", "clients", "rejected"])
    for row in job.history[-_ROWS:]:
        numbers = (number(row, f"cohort/{name}") for name in ("clients", "rejected"))
        counts = (f"{value:,.0f}" if math.isfinite(value) else "-" for value in numbers)
        seconds = number(row, "time/train_s")
        time = f"{seconds:.3g}" if math.isfinite(seconds) else "-"
        table.add_row(str(row["round"]), *(cell(n, number(row, n)) for n in names), time, *counts)
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
    return [Text(f"go on with: resume=auto {printable(place)}", style="bold")]


def _sweep(jobs: Sequence[Progress]) -> RenderableType:
    names = list(dict.fromkeys(name for job in jobs for name in _scores(job)))
    table = empty_table(["job", "settings", "status"], ["rounds", *names, "left"])
    for job in jobs:
        left = job.seconds_left if job.status == "running" else math.nan
        table.add_row(
            Text(printable(job.folder.name)),
            Text(" ".join(job.overrides)),
            Text(job.status, style=_STYLES.get(job.status, _ENDED)),
            f"{max(job.last, 0)} of {job.rounds}",
            *(cell(name, last_value(job.history, name)) for name in names),
            readable(left),
        )
    return table


def _scores(job: Progress) -> list[str]:
    """Training loss, and accuracies or else losses, that the run has measured."""
    names = [[f"{view}/{name}" for view in VIEWS] for name in ("accuracy", "loss")]
    accuracies, losses = ([n for n in part if series(job.history, n)[0]] for part in names)
    training = ["train/loss"] if series(job.history, "train/loss")[0] else []
    return [*training, *(accuracies or losses)]


def _position(job: Progress) -> str:
    return f"round {max(job.last, 0)} of {job.rounds}"


def _costs(job: Progress) -> list[str]:
    """Time, memory and utilisation, as far as the run measures them."""
    row = job.history[-1] if job.history else {}
    found = [
        ("{} a round", readable(job.seconds_a_round)),
        ("{} left", readable(job.seconds_left) if job.status == "running" else "-"),
        ("{} of memory", _bytes(row, "monitor/rank0_memory_bytes")),
        ("GPU {}", _percent(row, "monitor/gpu_percent")),
        ("{} on the GPU", _bytes(row, "monitor/gpu_memory_bytes")),
        ("virtual {}", readable(max(clock(job.history).values(), default=math.nan))),
    ]
    return [text.format(value) for text, value in found if value != "-"]


def _has(row: Row, column: str) -> bool:
    return math.isfinite(number(row, column))


def _bytes(row: Row, column: str) -> str:
    return decimal(int(number(row, column))) if _has(row, column) else "-"


def _percent(row: Row, column: str) -> str:
    return f"{number(row, column):.0f} %" if _has(row, column) else "-"
