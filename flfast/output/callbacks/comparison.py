"""Compares the jobs of a sweep: printed tables, `comparison.{csv,png}`, `report.html`.

Torch-free.
"""

import atexit
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.text import Text

from flfast.output.callbacks.figures import draw_charts, figure
from flfast.output.report.content import Content
from flfast.output.report.outcome_tables import (
    NO_NUMBERS,
    costs,
    differing,
    metric_columns,
    runs_table,
    settings_table,
    spent,
)
from flfast.output.report.page import report_or_warn
from flfast.output.results.history import last_value
from flfast.output.results.outcome import Outcome
from flfast.output.results.runs import RunRecord, find_runs, read_jobs
from flfast.output.results.settings import flat_settings
from flfast.output.results.statistics import FEWEST_SEEDS
from flfast.output.results.table import write_csv
from flfast.output.watch.view import on_screen, screen
from flfast.state.options import FORMATS, Formats
from flfast.state.real_folder import real_folder

_PLAIN_WIDTH = 140


class SweepComparison(Callback):
    """Compares the jobs of `--multirun` after the last one; the picture is in these formats.

    Hydra does not call `on_multirun_end` if a job has raised. The comparison is then written when
    Python exits.
    """

    def __init__(self, *, formats: Formats) -> None:
        if not formats or {*formats} - {*FORMATS}:
            raise ValueError(
                f"hydra.callbacks.comparison.formats={[*formats]}; allowed: {', '.join(FORMATS)}, "
                "or several of them"
            )
        self._formats = formats

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Register the comparison for Python's exit."""
        folder = real_folder(config.hydra.sweep.dir)
        self._report = partial(write_comparison, folder, self._formats)
        atexit.register(self._report)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Write the comparison."""
        atexit.unregister(self._report)
        self._report()


def write_comparison(sweep_dir: Path, formats: Sequence[str] = ("png",)) -> None:
    """Write the files into the sweep folder and print the tables, if any job has started."""
    jobs = read_jobs(sweep_dir)
    if not jobs:
        return
    content = Content(jobs)
    _write_csv(jobs, content, sweep_dir / "comparison.csv")
    draw_comparison(content, sweep_dir / "comparison.png", formats)
    report_or_warn(lambda: find_runs([sweep_dir]), sweep_dir / "report.html")
    _print(jobs, content, sweep_dir)


def draw_comparison(content: Content, path: Path, formats: Sequence[str] = ("png",)) -> None:
    """Draw `Content.criterion_charts`; no file if no job has measured the criterion.

    If the criterion has two columns, the legend says which one a line shows.
    """
    charts = content.criterion_charts
    if not charts:
        return
    names = {name: _label(content, name) for name in content.names}
    # The legend has a line for every setting of every group, 0.2 inches each.
    height = max(4.8, 0.6 + 0.21 * sum(name.count("\n") + 1 for name in names.values()))
    most = max(len(setting.finished) for setting in content.settings)
    title = "Mean over seeds" if most > 1 else ""
    title += ", with 95 % intervals" if most >= FEWEST_SEEDS else ""
    size = (4 + 5 * len(charts), height)
    with figure(path, size=size, dpi=150, title=title, formats=formats) as picture:
        drawn = draw_charts(picture, charts, columns=len(charts))
        if content.keys:
            labels = [names[name].replace("$", r"\$") for name in drawn]  # no formula
            picture.legend(drawn.values(), labels, loc="outside right upper")


def _label(content: Content, name: str) -> str:
    setting = content.settings[content.names.index(name)]
    columns = content.criterion.columns
    return "\n".join([*setting.label.split(" · "), *[content.column(name)] * (len(columns) > 1)])


def _print(jobs: Sequence[RunRecord], content: Content, sweep_dir: Path) -> None:
    console = screen(plain_width=_PLAIN_WIDTH)
    nums = [f"{job.num}" for job in jobs]
    lost = dict.fromkeys((*get_args(Outcome), NO_NUMBERS), "bold red")
    console.print(on_screen(runs_table(content, "Jobs", nums, "job"), lost))
    if any(len(setting.runs) > 1 for setting in content.settings):
        console.print(on_screen(settings_table(content, "Mean ± std over seeds")))
    for job in jobs:
        if not job.counts:  # soft-wrapped, so that the message stays a line
            reason = job.error or ("" if job.history else "it wrote no numbers")
            line = ": ".join(part for part in (f"job {job.num} {job.outcome}", reason) if part)
            console.print(Text(line, style="red"), soft_wrap=True)
    # Soft-wrapped, so that the path can be copied.
    console.print(Text(str(sweep_dir), style="bold"), soft_wrap=True)


def _write_csv(jobs: Sequence[RunRecord], content: Content, path: Path) -> None:
    keys, until = differing(content), spent(jobs, content)
    of_target = ["target", "rounds_to_target", "virtual_seconds_to_target"] if until else []
    metrics = metric_columns(jobs)
    numbers = [*metrics, "rounds", "seconds", *of_target]
    rows = []
    for place, job in enumerate(jobs):
        found = [*(last_value(job.history, metric) for metric in metrics), *costs(job)]
        if until and content.target is not None:
            found += [content.target, until[place].rounds, until[place].virtual_seconds]
        settings = flat_settings(job)
        values = (settings.get(key, "") for key in keys)
        cells = ("" if math.isnan(cell) else cell for cell in found)
        rows.append([job.num, job.outcome, *values, job.optimized, *cells])
    write_csv(path, ["job", "status", *keys, "optimized", *numbers], rows)
