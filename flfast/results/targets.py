"""Rounds and virtual time that the jobs of a sweep need to reach an accuracy. Torch-free."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from flfast.results.criterion import Criterion
from flfast.results.history import Row, clock, series, total
from flfast.results.sweep import Job


class Reached(NamedTuple):
    """When a job reaches the target; NaN if it does not.

    Attributes:
        rounds: of training.
        seconds: of virtual time.
    """

    rounds: float
    seconds: float


class Target(NamedTuple):
    """An accuracy, and when jobs reach it.

    Attributes:
        accuracy: the highest one that every job reaches which has not failed.
        reached: by job number.
    """

    accuracy: float
    reached: dict[int, Reached]


def common_target(jobs: Sequence[Job], columns: Sequence[str]) -> Target | None:
    """The target of a sweep; None if no job has a clock, or none has measured its accuracy.

    Args:
        jobs: of the sweep.
        columns: accuracies; the first one that a job has measured is the job's.
    """
    if not any(clock(job.history) for job in jobs):
        return None
    curves = {job.num: _curve(job, columns) for job in jobs}
    best = [max(curves[job.num][1], default=math.nan) for job in jobs if not job.failed]
    accuracy = min(filter(math.isfinite, best), default=math.nan)
    if math.isnan(accuracy):
        return None
    reached: dict[int, Reached] = {}
    for job in jobs:
        points = zip(*curves[job.num], strict=True)
        first = next((round_idx for round_idx, value in points if value >= accuracy), None)
        seconds = math.nan if first is None else clock(job.history).get(first, math.nan)
        reached[job.num] = Reached(math.nan if first is None else first, seconds)
    return Target(accuracy, reached)


def _curve(job: Job, columns: Sequence[str]) -> tuple[list[int], list[float]]:
    curves = (series(job.history, column) for column in columns)
    return next((curve for curve in curves if curve[0]), ([], []))


class Spent(NamedTuple):
    """What a run has spent when it reaches a value; NaN if it does not, or did not measure it.

    Attributes:
        rounds: of training.
        seconds: of training and evaluation.
        bytes: that all clients sent and received.
        virtual: seconds of virtual time.
    """

    rounds: float
    seconds: float
    bytes: float
    virtual: float


def spent_until(history: Sequence[Row], criterion: Criterion, target: float) -> Spent:
    """What a run spends until the first evaluation that reaches `target`.

    Rounds that were not evaluated count.
    """
    points = zip(*series(history, criterion.column(history)), strict=True)
    reached = (round_idx for round_idx, value in points if criterion.reached(value, target))
    first = next(reached, None)
    if first is None:
        return Spent(math.nan, math.nan, math.nan, math.nan)
    rows = [row for row in history if int(row["round"]) <= first]
    return Spent(
        rounds=first,
        seconds=total(rows, "time/train_s", "time/eval_s"),
        bytes=total(rows, "comm/up_bytes", "comm/down_bytes"),
        virtual=clock(history).get(first, math.nan),
    )
