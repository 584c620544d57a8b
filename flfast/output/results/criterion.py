"""Which column runs are compared by, and what they spend to reach a value of it. Torch-free."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flfast.output.results.columns import VIEWS
from flfast.output.results.history import (
    Row,
    clock,
    is_measured,
    last_value,
    metric_names,
    series,
    total,
)
from flfast.output.results.runs import RunRecord
from flfast.tasks.names import falls, headline


class Criterion(NamedTuple):
    """The columns that runs are compared by.

    Attributes:
        columns: a run is compared by the first of them that it measured; none if no run has
            measured any.
        rises: whether a larger value is better.
    """

    columns: tuple[str, ...]
    rises: bool

    @property
    def metric(self) -> str:
        """The metric of the columns, such as `accuracy`; without columns the loss."""
        return self.columns[0].partition("/")[2] if self.columns else "loss"

    @property
    def name(self) -> str:
        """The columns, as a reader sees them."""
        return " or ".join(self.columns)

    def column(self, history: Sequence[Row]) -> str:
        """The column of this run; the first one if it measured none, or else an empty name."""
        measured = [c for c in self.columns if series(history, c)[0]]
        return next(iter((*measured, *self.columns)), "")

    def reached(self, value: float, target: float) -> bool:
        """Whether a value is at least as good as the target."""
        return value >= target if self.rises else value <= target

    def common_target(self, histories: Iterable[Sequence[Row]]) -> float | None:
        """The best value that all runs reach; None if no run has measured it.

        Runs that never improve on their first value are left out: such a run would make that value
        the target, which costs nothing.
        """
        curves = [series(history, self.column(history))[1] for history in histories]
        best, worst = (max, min) if self.rises else (min, max)
        reached = [best(c) for c in curves if len(c) == 1 or (c and best(c) != c[0])]
        return worst(reached, default=None)

    def last(self, history: Sequence[Row]) -> float:
        """The last value; NaN if there is none."""
        return last_value(history, self.column(history))


def choose_criterion(runs: Sequence[RunRecord]) -> Criterion:
    """A score as in `shown_columns`, else the first loss that was measured, if there is any."""
    losses = [f"{view}/loss" for view in (*VIEWS, "train")]
    measured = [c for c in losses if is_measured((run.history for run in runs), c)]
    columns = shown_columns(runs) or measured[:1]
    return Criterion(tuple(columns), rises=not (columns and falls(columns[0])))


def shown_columns(jobs: Sequence[RunRecord]) -> list[str]:
    """Columns of a score to draw; each job is drawn with the first of them that it has measured.

    The score is the headline of all that jobs have measured, such as accuracy. Of users' modules
    it is what they optimise, if they name one.

    Usually the first view that all jobs have measured, or else that any job has. If any job has
    personal models and all jobs were evaluated on clients' own test sets: `personal/`, and
    `local/` for jobs without personal models.
    """
    done = [job for job in jobs if job.counts]
    begun, histories = [job.history for job in jobs], [job.history for job in done]
    names = metric_names(begun)
    modules = [job for job in jobs if job.config.get("task") == "module"]
    chosen = (str(job.config.get("optimized_metric")).partition("/")[2] for job in modules)
    score = next((name for name in chosen if name in names), headline(names))
    if score == "loss":
        return []
    on_clients = [f"personal/{score}", f"local/{score}"]
    all_on_clients = done and all(is_measured([h], *on_clients) for h in histories)
    personal = [is_measured([history], on_clients[0]) for history in histories]
    if all_on_clients and any(personal):
        return on_clients[:1] if all(personal) else on_clients
    columns = [f"{view}/{score}" for view in VIEWS]
    everywhere = [c for c in columns if done and all(is_measured([h], c) for h in histories)]
    return (everywhere or [c for c in columns if is_measured(begun, c)])[:1]


class Spent(NamedTuple):
    """What a run has spent when it reaches a value; NaN if it does not, or did not measure it.

    Attributes:
        rounds: rounds of training.
        seconds: seconds of training and evaluation.
        bytes: that all clients sent and received.
        virtual_seconds: seconds of virtual time.
    """

    rounds: float
    seconds: float
    bytes: float
    virtual_seconds: float


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
        virtual_seconds=clock(history).get(first, math.nan),
    )
