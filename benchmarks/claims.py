"""What a sweep over seeds says about a paper's claim, as a table in Markdown. Torch-free.

    python -m flfast.train -m experiment=fednova_synthetic algorithm=fednova,fedavg seed=0,1,2
    python -m benchmarks.claims SWEEP_FOLDER [SWEEP_FOLDER ...]
    python -m benchmarks.claims --target 0.8 SWEEP_FOLDER [SWEEP_FOLDER ...]

Without a target, of the central test set: loss and accuracy, as the mean over the last `TAIL`
evaluated rounds, and the standard deviation of the loss over these rounds, which says how steady a
run is. With a target, the rounds until the test accuracy reaches it, as McMahan et al. count them.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from flfast.output.results.history import Row, series
from flfast.output.results.runs import RunRecord, read_jobs
from flfast.output.results.settings import group_runs
from flfast.output.results.statistics import mean_interval
from flfast.zoo.commands.conformance.run_measures import crossing

LOSS, ACCURACY = "global/loss", "global/accuracy"
TAIL = 20
"""Evaluated rounds at the end of a run that count."""

Measure = Callable[[Sequence[Row]], float]


def at_the_end(column: str) -> Measure:
    """Mean of a column over the last rounds."""
    return lambda history: statistics.fmean(series(history, column)[1][-TAIL:])


def unsteadiness(history: Sequence[Row]) -> float:
    """Standard deviation of the test loss over the last rounds."""
    return statistics.pstdev(series(history, LOSS)[1][-TAIL:])


def rounds_to(target: float) -> Measure:
    """Rounds until the test accuracy reaches a target; NaN if it does not."""
    return lambda history: crossing(history, ACCURACY, target)


END: dict[str, tuple[Measure, str]] = {
    "test loss": (at_the_end(LOSS), ".3f"),
    "its deviation over rounds": (unsteadiness, ".3f"),
    "test accuracy": (at_the_end(ACCURACY), ".3f"),
}


def table(jobs: Sequence[RunRecord], columns: dict[str, tuple[Measure, str]]) -> str:
    """A row for each setting, with means ± standard deviations over seeds.

    A measure that is not finite for one of the seeds says for how many it is.
    """
    groups = [setting for setting in group_runs(jobs)[0] if setting.finished]
    lines = [[*groups[0].values, "seeds", *columns]]
    lines.append(["---"] * len(lines[0]))
    for part in groups:
        found = [_cell(part.finished, measure, form) for measure, form in columns.values()]
        lines.append([*part.values.values(), str(len(part.finished)), *found])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(jobs: Sequence[RunRecord], measure: Measure, form: str) -> str:
    values = [measure(job.history) for job in jobs]
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < len(values):
        return f"{len(finite)} of {len(values)} seeds"
    over = mean_interval(values)
    deviation = "" if math.isnan(over.std) else f" ± {over.std:{form}}"
    return f"{over.mean:{form}}{deviation}"


def main() -> None:
    """Prints the table of the sweeps on the command line."""
    parser = argparse.ArgumentParser(description="What a sweep says about a paper's claim.")
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--target", type=float, help="test accuracy to reach")
    words = parser.parse_args()
    columns = END
    if words.target is not None:
        columns = {f"rounds to {words.target:g}": (rounds_to(words.target), ".1f")}
    jobs = [job for sweep in words.sweeps for job in read_jobs(sweep)]
    print(table(jobs, columns))  # noqa: T201 - its output


if __name__ == "__main__":
    main()
