"""Compares the jobs of a sweep: printed tables, `comparison.{csv,png}`, `report.html`.

Torch-free.
"""

import atexit
import csv
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.table import Table
from rich.text import Text

from flfast.output.callbacks.comparison_figure import draw_comparison
from flfast.output.callbacks.screen import cell, empty_table, screen
from flfast.output.report.page import report_or_warn
from flfast.output.results.criterion import shown_columns
from flfast.output.results.durations import readable
from flfast.output.results.sweep import (
    METRICS,
    Job,
    group_by_settings,
    job_results,
    read_jobs,
    spread,
    varying_keys,
)
from flfast.output.results.targets import Target, sweep_target

_PLAIN_WIDTH = 140


class SweepComparison(Callback):
    """Compares the jobs of `--multirun` after the last one.

    Hydra does not call `on_multirun_end` if a job has raised. The comparison is then written when
    Python exits.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Register the comparison for Python's exit."""
        self._report = partial(write_comparison, Path(config.hydra.sweep.dir).absolute())
        atexit.register(self._report)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Write the comparison."""
        atexit.unregister(self._report)
        self._report()


def write_comparison(sweep_dir: Path) -> None:
    """Write the files into the sweep folder and print the tables, if any job has started."""
    jobs = read_jobs(sweep_dir)
    if not jobs:
        return
    target = sweep_target(jobs, shown_columns(jobs))
    _write_csv(jobs, target, sweep_dir / "comparison.csv")
    draw_comparison(jobs, sweep_dir / "comparison.png")
    report_or_warn([sweep_dir], sweep_dir / "report.html")
    _print(jobs, target, sweep_dir)


def _print(jobs: Sequence[Job], target: Target | None, sweep_dir: Path) -> None:
    console = screen(plain_width=_PLAIN_WIDTH)
    console.print(_job_table(jobs, target))
    if any(len(seeds) > 1 for seeds in group_by_settings(jobs).values()):
        console.print(_seed_table(jobs, target))
    for job in jobs:
        if not job.counts:  # soft-wrapped, so that the message stays a line
            reason = job.error or ("" if job.history else "it wrote no numbers")
            line = ": ".join(part for part in (f"job {job.num} {job.outcome}", reason) if part)
            console.print(Text(line, style="red"), soft_wrap=True)
    # Soft-wrapped, so that the path can be copied.
    console.print(Text(str(sweep_dir), style="bold"), soft_wrap=True)


def _measured_metrics(jobs: Sequence[Job]) -> list[str]:
    """Accuracies and the global loss; without accuracies all losses."""
    rows = [job_results(job) for job in jobs]
    found = [metric for metric in METRICS if any(math.isfinite(row[metric]) for row in rows)]
    accuracies = [metric for metric in found if metric.endswith("accuracy")]
    others = ["global/loss"] if accuracies else METRICS
    return [metric for metric in found if metric in accuracies or metric in others]


def _target_headings(target: Target | None) -> list[str]:
    if target is None:
        return []
    accuracy = cell("accuracy", target.accuracy).replace(" ", "\N{NO-BREAK SPACE}")
    return [f"rounds to {accuracy}", f"virtual time to {accuracy}"]


def _target_cells(jobs: Sequence[Job], target: Target | None) -> list[str]:
    """Mean and standard deviation over the jobs; no mean if some do not reach the target."""
    if target is None:
        return []
    spent = [target.spent[job.num] for job in jobs]
    if not spent or any(math.isnan(one.rounds) for one in spent):
        return ["-", "-"]
    rounds = spread(one.rounds for one in spent)
    deviation = f" ± {rounds.std:.1f}" if math.isfinite(rounds.std) else ""
    seconds = spread(one.virtual for one in spent)
    return [f"{rounds.mean:,.4g}{deviation}", readable(*seconds)]


def _job_table(jobs: Sequence[Job], target: Target | None) -> Table:
    keys, metrics = varying_keys(jobs), _measured_metrics(jobs)
    # Results of the sweep are then of different models, which the table has to say.
    mixed = len({job.optimized for job in jobs if job.counts}) > 1
    headings = ["job", *keys, *["optimized"] * mixed]
    numbers = [*metrics, *_target_headings(target), "rounds", "time"]
    table = empty_table(headings, numbers, title="Jobs")
    for job in jobs:
        found = job_results(job)
        words = [Text(job.overrides.get(key, "-")) for key in keys]
        words += [Text(job.optimized if job.counts else "-")] * mixed
        cells = [cell(metric, found[metric]) for metric in metrics]
        rounds = f"{found['rounds']:.0f}" if job.history else "-"
        seconds = f"{found['seconds']:.1f} s"
        lost = "no numbers" if job.outcome == "finished" else job.outcome
        time = seconds if job.counts else Text(lost, style="bold red")
        table.add_row(f"{job.num}", *words, *cells, *_target_cells([job], target), rounds, time)
    return table


def _seed_table(jobs: Sequence[Job], target: Target | None) -> Table:
    keys, metrics = [key for key in varying_keys(jobs) if key != "seed"], _measured_metrics(jobs)
    numbers = [*metrics, *_target_headings(target), "seeds"]
    table = empty_table(keys, numbers, title="Mean ± std over seeds")
    for values, members in group_by_settings(jobs).items():
        finished = [job for job in members if job.counts]
        done = [job_results(job) for job in finished]
        cells = [cell(metric, *spread(found[metric] for found in done)) for metric in metrics]
        cells += _target_cells(finished, target)
        table.add_row(*(Text(value or "-") for value in values), *cells, f"{len(done)}")
    return table


def _write_csv(jobs: Sequence[Job], target: Target | None, path: Path) -> None:
    keys = varying_keys(jobs)
    of_target = ["target", "rounds_to_target", "virtual_seconds_to_target"] if target else []
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        numbers = [*METRICS, "rounds", "seconds", *of_target]
        writer.writerow(["job", "status", *keys, "optimized", *numbers])
        for job in jobs:
            found = [*job_results(job).values()]
            if target:
                spent = target.spent[job.num]
                found += [target.accuracy, spent.rounds, spent.virtual]
            cells = ("" if math.isnan(value) else value for value in found)
            values = (job.overrides.get(key, "") for key in keys)
            writer.writerow([job.num, job.outcome, *values, job.optimized, *cells])
