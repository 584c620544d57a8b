"""Reads the jobs of a sweep from the disk. Torch-free."""

import logging
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flfast.output.results.history import Row, clock, last_value, number, series, total, uploaded
from flfast.output.results.outcome import Outcome
from flfast.output.results.runs import RunRecord, read_each, read_run, run_folders
from flfast.state.config_keys import influence
from flfast.state.messages import first_line

log = logging.getLogger(__name__)

METRICS = (
    "global/accuracy",
    "local/accuracy",
    "personal/accuracy",
    "val/accuracy",
    "personal_val/accuracy",
    "global/loss",
    "local/loss",
    "personal/loss",
    "val/loss",
    "personal_val/loss",
)
"""Columns of `comparison.csv`."""


class Job(NamedTuple):
    """One run of a sweep.

    Attributes:
        num: Hydra's job number.
        overrides: the job's overrides, by key.
        history: rows of `metrics.csv`, values as text.
        outcome: what has become of it.
        counts: whether it has finished and wrote rows: only then its results are used.
        optimized: the column whose last value Hydra's sweeper got.
        error: message of the error that the job raised, in one line.
    """

    num: int
    overrides: dict[str, str]
    history: list[Row]
    outcome: Outcome
    counts: bool
    optimized: str
    error: str = ""


class Spread(NamedTuple):
    """Mean and sample standard deviation over seeds; NaN if there are too few values."""

    mean: float
    std: float


def read_jobs(sweep_dir: Path) -> list[Job]:
    """All jobs below a sweep folder, sorted by job number.

    A damaged one is left out with a warning, and a single run that happens to lie there without.
    """
    try:
        runs = read_each(run_folders(sweep_dir), read_run)
    except (OSError, ValueError) as error:
        log.warning("no job can be read: %s", first_line(error))
        return []
    jobs = [_job(run.num, run) for run in runs if run.num is not None]
    return sorted(jobs, key=lambda job: job.num)


def _job(num: int, run: RunRecord) -> Job:
    return Job(num, run.overrides, run.history, run.outcome, run.counts, run.optimized, run.error)


def varying_keys(jobs: Sequence[Job]) -> list[str]:
    """Keys of overrides in which jobs differ, in order of first appearance."""
    names = dict.fromkeys(key for job in jobs for key in job.overrides)
    keys = [key for key in names if influence(key) != "command"]
    return [key for key in keys if len({job.overrides.get(key) for job in jobs}) > 1]


def group_by_settings(jobs: Sequence[Job]) -> dict[tuple[str, ...], list[Job]]:
    """Jobs that differ only in the seed, by their values of the other varying keys."""
    keys = [key for key in varying_keys(jobs) if key != "seed"]
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(tuple(job.overrides.get(key, "") for key in keys), []).append(job)
    return groups


def job_results(job: Job) -> dict[str, float]:
    """Last value of each of `METRICS`, number of rounds, seconds of training and evaluation."""
    found = {metric: last_value(job.history, metric) for metric in METRICS}
    rounds = int(number(job.history[-1], "round")) if job.history else math.nan
    seconds = total(job.history, "time/train_s", "time/eval_s") if job.history else math.nan
    return {**found, "rounds": rounds, "seconds": seconds}


def spread(values: Iterable[float]) -> Spread:
    """Mean and standard deviation of the finite values.

    >>> spread([1.0, 3.0, float("nan")])
    Spread(mean=2.0, std=1.4142135623730951)
    """
    finite = [value for value in values if math.isfinite(value)]
    return Spread(
        mean=statistics.fmean(finite) if finite else math.nan,
        std=statistics.stdev(finite) if len(finite) > 1 else math.nan,
    )


def mean_series(jobs: Sequence[Job], column: str) -> tuple[list[int], list[Spread]]:
    """Rounds in which any job has measured the column, and the spread over those jobs."""
    by_round: dict[int, list[float]] = {}
    for job in jobs:
        for round_idx, value in zip(*series(job.history, column), strict=True):
            by_round.setdefault(round_idx, []).append(value)
    rounds = sorted(by_round)
    return rounds, [spread(by_round[round_idx]) for round_idx in rounds]


def mean_over_time(jobs: Sequence[Job], column: str) -> tuple[list[float], list[Spread]]:
    """Virtual seconds, and the spread over the jobs then; interpolated, while all of them run."""
    return _mean_over(jobs, column, clock)


def mean_over_bytes(jobs: Sequence[Job], column: str) -> tuple[list[float], list[Spread]]:
    """Bytes uploaded so far, and the spread over the jobs then; as `mean_over_time`."""
    return _mean_over(jobs, column, uploaded)


def _mean_over(
    jobs: Sequence[Job], column: str, place: Callable[[Sequence[Row]], dict[int, float]]
) -> tuple[list[float], list[Spread]]:
    curves: list[tuple[list[float], list[float]]] = []
    for job in jobs:
        places = place(job.history)
        rounds, values = series(job.history, column)
        known = [
            (places[r], value) for r, value in zip(rounds, values, strict=True) if r in places
        ]
        if known:
            curves.append(([at for at, _ in known], [value for _, value in known]))
    first = max((places[0] for places, _ in curves), default=math.nan)
    last = min((places[-1] for places, _ in curves), default=math.nan)
    shown = sorted({at for places, _ in curves for at in places if first <= at <= last})
    rows = zip(*(np.interp(shown, *curve) for curve in curves), strict=True)
    return shown, [spread(map(float, row)) for row in rows]
