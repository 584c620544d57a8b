"""Two checkouts in one call: how many times as fast one is as the other. Torch-free.

The two run one after the other in every repeat. Each such pair gives a ratio, so that a machine
that is slower for a minute slows both; the spread is that of the ratios.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from rich import box
from rich.table import Table

from benchmarks.summary import Spread, spread

SAME = 1e-3  # relative; the last loss of two checkouts that compute the same numbers


@dataclass(frozen=True)
class Comparison:
    """One contender of two checkouts in one workload.

    Attributes:
        workload: its name.
        before, now: names of the contender, of the earlier and the later checkout.
        seconds: of `train` and `whole`: median of each (before, now).
        ratio: of `train`, `whole` and `start`: seconds before over seconds now, over all pairs;
            2 is twice as fast now.
        least: the same of the fastest whole round of each, which other programs disturb least.
        loss: after the last round (before, now); None where the server has no model.
    """

    workload: str
    before: str
    now: str
    seconds: dict[str, tuple[float, float]]
    ratio: dict[str, Spread]
    least: float
    loss: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """What the ratios of whole rounds say."""
        whole = self.ratio["whole"]
        if whole.low == whole.high:
            return "one pair"
        if whole.low > 1:
            return "faster"
        return "slower" if whole.high < 1 else "within the spread"


def compare(entry: dict[str, Any], pairs: list[tuple[str, str]]) -> list[Comparison]:
    """Comparisons of a workload.

    Args:
        entry: `workload` and `measured`, as in a result.
        pairs: names of contenders (before, now).
    """
    measured = entry["measured"]
    return [
        _compared(entry["workload"]["name"], pair, measured[pair[0]], measured[pair[1]])
        for pair in pairs
        if measured.get(pair[0]) and measured.get(pair[1])
    ]


def table(comparisons: list[Comparison]) -> Table:
    """A line a workload and contender."""
    title = "Seconds before over seconds now (above 1: faster now), least / median / largest pair"
    drawn = Table(title=title, box=box.MARKDOWN, title_justify="left")
    for column in ("workload", "before", "now"):
        drawn.add_column(column)
    for column in ("train s", "whole s", "train", "whole", "least whole", "start", "verdict"):
        drawn.add_column(column, justify="right")
    for found in comparisons:
        drawn.add_row(
            *(found.workload, found.before, found.now),
            *(" → ".join(f"{s:.3g}" for s in found.seconds[part]) for part in ("train", "whole")),
            *(_ratio(found.ratio[part]) for part in ("train", "whole")),
            f"{found.least:.3f}",
            _ratio(found.ratio["start"]),
            found.verdict,
        )
    return drawn


def notes(comparisons: list[Comparison]) -> list[str]:
    """Where two checkouts do not compute the same."""
    return [
        f"{found.workload}: other numbers, the loss is {found.loss[0]:.6g} with {found.before} "
        f"and {found.loss[1]:.6g} with {found.now}"
        for found in comparisons
        if found.loss and abs(found.loss[0] - found.loss[1]) > SAME * abs(found.loss[0])
    ]


def _compared(
    workload: str, pair: tuple[str, str], before: list[dict[str, Any]], now: list[dict[str, Any]]
) -> Comparison:
    # A call that was ended early may have measured one more of the first.
    runs = list(zip(map(_seconds, before), map(_seconds, now), strict=False))
    losses = before[-1]["loss"], now[-1]["loss"]
    return Comparison(
        workload=workload,
        before=pair[0],
        now=pair[1],
        seconds={
            part: (median(a[part] for a, _ in runs), median(b[part] for _, b in runs))
            for part in ("train", "whole")
        },
        ratio={part: spread([a[part] / b[part] for a, b in runs]) for part in runs[0][0]},
        least=_least(before) / _least(now),
        loss=None if None in losses else losses,
    )


def _seconds(run: dict[str, Any]) -> dict[str, float]:
    """Of a process: its median round, and its start."""
    rounds = run["rounds"]
    return {
        "train": median(row["train_s"] for row in rounds),
        "whole": median(row["train_s"] + row["eval_s"] for row in rounds),
        "start": run["startup_s"],
    }


def _least(runs: list[dict[str, Any]]) -> float:
    return min(row["train_s"] + row["eval_s"] for run in runs for row in run["rounds"])


def _ratio(found: Spread) -> str:
    if found.low == found.high:
        return f"{found.median:.3f}"
    return f"{found.low:.3f} / {found.median:.3f} / {found.high:.3f}"
