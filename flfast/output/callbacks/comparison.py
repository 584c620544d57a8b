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

from flfast.output.callbacks.figures import draw_charts, figure
from flfast.output.report.content import Content
from flfast.output.report.page import report_or_warn
from flfast.output.results.durations import readable
from flfast.output.results.formats import value
from flfast.output.results.history import clock, last_value, total
from flfast.output.results.runs import RunRecord, read_jobs
from flfast.output.results.settings import SEED, flat_settings
from flfast.output.results.statistics import FEWEST_SEEDS, mean_interval
from flfast.output.results.targets import Spent, spent_until
from flfast.output.watch.screen import empty_table, screen

_METRICS = tuple(
    f"{view}/{name}"
    for name in ("accuracy", "loss")
    for view in ("global", "local", "personal", "val", "personal_val")
)
"""Columns of `comparison.csv`."""

_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B", "#000000"]
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
    content = Content(jobs)
    _write_csv(jobs, content, sweep_dir / "comparison.csv")
    draw_comparison(content, sweep_dir / "comparison.png")
    report_or_warn([sweep_dir], sweep_dir / "report.html")
    _print(jobs, content, sweep_dir)


def draw_comparison(content: Content, path: Path) -> None:
    """Write a PNG of `Content.criterion_charts`; no file if no job has measured the criterion.

    If the criterion has two columns, the legend says which one a line shows.
    """
    charts = content.criterion_charts
    if not charts:
        return
    names = dict(zip(content.names, map(partial(_label, content), content.names), strict=True))
    styles = dict(zip(names, [{"color": c} for c in _colours(len(names))], strict=True))
    # The legend has a line for every setting of every group, 0.2 inches each.
    height = max(4.8, 0.6 + 0.21 * sum(name.count("\n") + 1 for name in names.values()))
    most = max(len(setting.finished) for setting in content.settings)
    title = "Mean over seeds" if most > 1 else ""
    title += ", with 95 % intervals" if most >= FEWEST_SEEDS else ""
    size = (4 + 5 * len(charts), height)
    with figure(path, size=size, dpi=150, title=title) as picture:
        drawn = draw_charts(picture, charts, styles, columns=len(charts))
        if content.keys:
            labels = [names[name] for name in drawn]
            picture.legend(drawn.values(), labels, loc="outside right upper")


def _label(content: Content, name: str) -> str:
    setting = content.settings[content.names.index(name)]
    columns = content.criterion.columns if content.criterion else ()
    return "\n".join([*setting.label.split(" · "), *[content.column(name)] * (len(columns) > 1)])


def _colours(num: int) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if num <= len(_COLOURS):
        return _COLOURS[:num]
    return [to_hex(colormaps["viridis"](0.95 * place / (num - 1))) for place in range(num)]


def _print(jobs: Sequence[RunRecord], content: Content, sweep_dir: Path) -> None:
    console = screen(plain_width=_PLAIN_WIDTH)
    console.print(_job_table(jobs, content))
    if any(len(setting.runs) > 1 for setting in content.settings):
        console.print(_seed_table(jobs, content))
    for job in jobs:
        if not job.counts:  # soft-wrapped, so that the message stays a line
            reason = job.error or ("" if job.history else "it wrote no numbers")
            line = ": ".join(part for part in (f"job {job.num} {job.outcome}", reason) if part)
            console.print(Text(line, style="red"), soft_wrap=True)
    # Soft-wrapped, so that the path can be copied.
    console.print(Text(str(sweep_dir), style="bold"), soft_wrap=True)


def _measured_metrics(jobs: Sequence[RunRecord]) -> list[str]:
    """Accuracies and the global loss; without accuracies all losses."""
    found = [m for m in _METRICS if any(math.isfinite(last_value(j.history, m)) for j in jobs)]
    accuracies = [metric for metric in found if metric.endswith("accuracy")]
    return [m for m in found if m in accuracies or not accuracies or m == "global/loss"]


def _keys(jobs: Sequence[RunRecord], content: Content) -> list[str]:
    return [*content.keys, *[SEED] * (len({job.seed for job in jobs}) > 1)]


def _spent(jobs: Sequence[RunRecord], content: Content) -> list[Spent]:
    """What jobs spend until the target; empty if there is none, or no job has a clock."""
    if content.target is None or not any(clock(job.history) for job in content.runs):
        return []
    assert content.criterion is not None
    return [spent_until(job.history, content.criterion, content.target) for job in jobs]


def _cells(jobs: Sequence[RunRecord], metrics: Sequence[str], content: Content) -> list[str]:
    """Means and standard deviations; of what the target costs no mean if a job misses it."""
    cells = []
    for metric in metrics:
        found = mean_interval([last_value(job.history, metric) for job in jobs])
        cells.append(value(metric, found.mean, found.std))
    spent = _spent(jobs, content)
    if not spent or any(math.isnan(one.rounds) for one in spent):
        return cells + ["-"] * len(_target_headings(content))
    rounds = mean_interval([one.rounds for one in spent])
    virtual = mean_interval([one.virtual_seconds for one in spent])
    deviation = f" ± {rounds.std:.1f}" if math.isfinite(rounds.std) else ""
    return [*cells, f"{rounds.mean:,.4g}{deviation}", readable(virtual.mean, virtual.std)]


def _target_headings(content: Content) -> list[str]:
    if content.criterion is None or content.target is None or not _spent(content.runs, content):
        return []
    goal = value(content.criterion.name, content.target).replace(" ", "\N{NO-BREAK SPACE}")
    return [f"rounds to {goal}", f"virtual time to {goal}"]


def _costs(job: RunRecord) -> tuple[float, float]:
    """Rounds, and seconds of training and evaluation."""
    if not job.history:
        return math.nan, math.nan
    return int(job.history[-1]["round"]), total(job.history, "time/train_s", "time/eval_s")


def _job_table(jobs: Sequence[RunRecord], content: Content) -> Table:
    keys, metrics = _keys(jobs, content), _measured_metrics(jobs)
    # Results of the sweep are then of different models, which the table has to say.
    mixed = len({job.optimized for job in jobs if job.counts}) > 1
    headings = ["job", *keys, *["optimized"] * mixed]
    numbers = [*metrics, *_target_headings(content), "rounds", "time"]
    table = empty_table(headings, numbers, title="Jobs")
    for job in jobs:
        settings, (rounds, seconds) = flat_settings(job), _costs(job)
        words = [Text(settings.get(key, "-")) for key in keys]
        words += [Text(job.optimized if job.counts else "-")] * mixed
        lost = "no numbers" if job.outcome == "finished" else job.outcome
        time = f"{seconds:.1f} s" if job.counts else Text(lost, style="bold red")
        cells = _cells([job], metrics, content)
        table.add_row(f"{job.num}", *words, *cells, f"{rounds}" if job.history else "-", time)
    return table


def _seed_table(jobs: Sequence[RunRecord], content: Content) -> Table:
    metrics = _measured_metrics(jobs)
    numbers = [*metrics, *_target_headings(content), "seeds"]
    table = empty_table(content.keys, numbers, title="Mean ± std over seeds")
    for setting in content.settings:
        done = setting.finished
        cells = _cells(done, metrics, content)
        table.add_row(*map(Text, setting.values.values()), *cells, f"{len(done)}")
    return table


def _write_csv(jobs: Sequence[RunRecord], content: Content, path: Path) -> None:
    keys, spent = _keys(jobs, content), _spent(jobs, content)
    of_target = ["target", "rounds_to_target", "virtual_seconds_to_target"] if spent else []
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        numbers = [*_METRICS, "rounds", "seconds", *of_target]
        writer.writerow(["job", "status", *keys, "optimized", *numbers])
        for place, job in enumerate(jobs):
            found = [*(last_value(job.history, metric) for metric in _METRICS), *_costs(job)]
            if spent and content.target is not None:
                found += [content.target, spent[place].rounds, spent[place].virtual_seconds]
            settings = flat_settings(job)
            values = (settings.get(key, "") for key in keys)
            cells = ("" if math.isnan(cell) else cell for cell in found)
            writer.writerow([job.num, job.outcome, *values, job.optimized, *cells])
