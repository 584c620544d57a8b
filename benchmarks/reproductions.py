"""Rounds to a target accuracy, next to those of McMahan et al. 2017, as a table in Markdown.

    python -m flfast.train -m experiment=mcmahan_2nn partition=iid,shards optimizer.lr=0.1,0.2
    python -m benchmarks.reproductions SWEEP_FOLDER [SWEEP_FOLDER ...]

Counted as in the paper: the curve is the best test accuracy so far, linear between rounds, and the
rounds are where it crosses the target. Of the learning rates that were tried, the one with the
fewest rounds counts. Torch-free.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from flfast.output.results.runs import RunRecord, find_runs
from flfast.zoo.commands.conformance.run_measures import crossing

GOOD = 1.25
"""Most rounds, as a factor of the paper's, of a row that is ticked."""


class Setting(NamedTuple):
    """A row of the paper's tables; B = -1 is all of a client's examples."""

    model: str
    partition: str
    epochs: int
    batch_size: int
    fraction: float


PAPER = {
    Setting("mlp", "iid", 1, 10, 0.1): 87,
    Setting("mlp", "shards", 1, 10, 0.1): 664,
    Setting("mlp", "iid", 1, -1, 0.1): 1474,
    Setting("mlp", "shards", 1, -1, 0.1): 1796,
    Setting("mlp", "iid", 1, 10, 1.0): 70,
    Setting("mlp", "shards", 1, 10, 1.0): 380,
    Setting("cnn", "iid", 1, 10, 0.1): 34,
    Setting("cnn", "shards", 1, 10, 0.1): 350,
    Setting("cnn", "iid", 5, 10, 0.1): 20,
    Setting("cnn", "shards", 5, 10, 0.1): 229,
    Setting("cnn", "iid", 20, 10, 0.1): 18,
    Setting("cnn", "shards", 20, 10, 0.1): 173,
}
"""Rounds to 97 % (2NN, table 1) and to 99 % (CNN, table 2)."""

HEAD = (
    *("model", "clients", "E", "B", "C", "learning rates", "seeds", "best"),
    *("rounds", "paper", "factor", f"within {GOOD:g}"),
)


def setting_of(run: RunRecord) -> Setting:
    """The row that a run belongs to."""
    config = run.config
    return Setting(
        run.choices.get("model", ""),
        run.choices.get("partition", ""),
        config["local_epochs"],
        config["batch_size"],
        float(config["sampler"]["fraction"]),
    )


def table(runs: Iterable[RunRecord]) -> str:
    """A row for each setting of the paper that was run."""
    found: dict[Setting, list[RunRecord]] = {setting: [] for setting in PAPER}
    for run in runs:
        found.get(setting_of(run), []).append(run)
    lines = [HEAD, ["---"] * len(HEAD)]
    lines += [_row(setting, part) for setting, part in found.items() if part]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(setting: Setting, runs: Sequence[RunRecord]) -> list[str]:
    by_rate: dict[float, list[float]] = {}
    for run in runs:
        stop = run.config["stop"]
        rounds = crossing(run.history, stop["metric"], stop["value"])
        by_rate.setdefault(float(run.config["optimizer"]["lr"]), []).append(rounds)
    # A rate counts where all seeds arrive.
    means = {rate: sum(rounds) / len(rounds) for rate, rounds in by_rate.items()}
    arrived = {rate: mean for rate, mean in means.items() if math.isfinite(mean)}
    best = min(arrived, key=lambda rate: arrived[rate], default=math.nan)
    rounds = arrived.get(best, math.nan)
    paper = PAPER[setting]
    reached = math.isfinite(rounds)
    return [
        {"mlp": "2NN", "cnn": "CNN"}[setting.model],
        {"iid": "IID", "shards": "non-IID"}[setting.partition],
        str(setting.epochs),
        "∞" if setting.batch_size == -1 else str(setting.batch_size),
        f"{setting.fraction:g}",
        ", ".join(f"{rate:g}" for rate in sorted(by_rate)),
        ", ".join(sorted({run.seed for run in runs})),
        f"{best:g}" if reached else "",
        f"{rounds:.0f}" if reached else f"not in {max(len(run.history) - 1 for run in runs)}",
        str(paper),
        f"{rounds / paper:.2f}" if reached else "",
        "✓" if reached and rounds <= GOOD * paper else "",
    ]


if __name__ == "__main__":
    print(table(find_runs(map(Path, sys.argv[1:]))))  # noqa: T201 - its output
