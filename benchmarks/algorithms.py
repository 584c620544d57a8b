"""Compares the algorithms of a sweep over seeds, as a table in Markdown. Torch-free.

    python -m flfast.train -m algorithm=fedavg,ditto seed=0,1,2 ...
    python -m benchmarks.algorithms SWEEP_FOLDER

Accuracy is the mean over clients on their own test data, of the last round: of the server's model,
of the clients' own models, and of the server's model after fine-tuning. The worst tenth of the
clients, and the bytes, are of the best of these three.
"""

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from flfast.output.results.history import Row, last_value, number, series
from flfast.output.results.runs import RunRecord, read_jobs
from flfast.output.results.settings import group_runs
from flfast.output.results.statistics import Interval, mean_interval

VIEWS = ("local", "personal", "finetuned")
HEAD = (
    *("`algorithm=`", "server's model, %", "own models, %", "fine-tuned, %"),
    *("worst tenth, %", "ms a round", "MB to 90 %"),
)
GOAL = 0.9


def table(jobs: Sequence[RunRecord]) -> str:
    """A row for each algorithm, the most accurate first."""
    groups = [setting.finished for setting in group_runs(jobs)[0] if setting.finished]
    groups.sort(key=lambda part: -_mean(part, f"{best_view(part)}/accuracy"))
    lines = [HEAD, ["---"] * len(HEAD), *map(_row, groups)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def best_view(jobs: Sequence[RunRecord]) -> str:
    """Whose models are the most accurate: the server's, the clients' own, or fine-tuned ones."""
    means = {view: _mean(jobs, f"{view}/accuracy") for view in VIEWS}
    return max(VIEWS, key=lambda view: -1.0 if math.isnan(means[view]) else means[view])


def megabytes_to_goal(history: Sequence[Row], column: str) -> float:
    """Bytes of all clients, up and down, until a column reaches `GOAL`; NaN if it does not.

    Rounds that are not evaluated count.
    """
    rounds, values = series(history, column)
    reached = [r for r, value in zip(rounds, values, strict=True) if value >= GOAL]
    if not reached:
        return math.nan
    ways = ("comm/up_bytes", "comm/down_bytes")
    rows = [row for row in history if 0 < int(row["round"]) <= reached[0]]
    return sum(number(row, way) for row in rows for way in ways) / 1e6


def _row(jobs: Sequence[RunRecord]) -> list[str]:
    view = best_view(jobs)
    rounds = [statistics.median(series(job.history, "time/train_s")[1]) for job in jobs]
    to_goal = mean_interval(
        [megabytes_to_goal(job.history, f"{view}/accuracy") for job in jobs]
    ).mean
    return [
        f"`{jobs[0].choices['algorithm']}`",
        *(_percent(_spread(jobs, f"{each}/accuracy")) for each in VIEWS),
        _percent(_spread(jobs, f"{view}/accuracy_worst10")),
        f"{1000 * statistics.median(rounds):.0f}",
        "" if math.isnan(to_goal) else f"{to_goal:.1f}",
    ]


def _spread(jobs: Sequence[RunRecord], column: str) -> Interval:
    return mean_interval([last_value(job.history, column) for job in jobs])


def _mean(jobs: Sequence[RunRecord], column: str) -> float:
    return _spread(jobs, column).mean


def _percent(found: Interval) -> str:
    if math.isnan(found.mean):
        return ""
    return f"{100 * found.mean:.1f} ± {100 * found.std:.1f}"


if __name__ == "__main__":
    print(table(read_jobs(Path(sys.argv[1]))))  # noqa: T201 - its output
