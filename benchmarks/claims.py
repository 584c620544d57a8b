"""What a sweep over seeds says about a paper's claim, as a table in Markdown. Torch-free.

    python -m flfast.train -m experiment=fednova_synthetic algorithm=fednova,fedavg seed=0,1,2
    python -m benchmarks.claims SWEEP_FOLDER [SWEEP_FOLDER ...]
    python -m benchmarks.claims --target 0.8 SWEEP_FOLDER [SWEEP_FOLDER ...]

Without a target, of the central test set: loss and accuracy, as the mean over the last `TAIL`
evaluated rounds, and the standard deviation of the loss over these rounds, which says how steady a
run is. With a target, the rounds until the test accuracy reaches it, as `benchmarks.reproductions`
counts them.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.reproductions import crossing
from flfast.output.results.history import Row, series
from flfast.output.results.sweep import Job, group_by_settings, read_jobs, spread, varying_keys

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


def table(jobs: Sequence[Job], columns: dict[str, tuple[Measure, str]]) -> str:
    """A row for each setting, with means ± standard deviations over seeds.

    A measure that is not finite for one of the seeds says for how many it is.
    """
    groups = [part for part in group_by_settings(jobs).values() if part[0].counts]
    differ = [key for key in varying_keys(jobs) if key != "seed"]
    lines = [[*differ, "seeds", *columns]]
    lines.append(["---"] * len(lines[0]))
    for part in groups:
        cells = [part[0].overrides.get(key, "") for key in differ]
        found = [_cell(part, measure, form) for measure, form in columns.values()]
        lines.append([*cells, str(len(part)), *found])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(jobs: Sequence[Job], measure: Measure, form: str) -> str:
    values = [measure(job.history) for job in jobs]
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < len(values):
        return f"{len(finite)} of {len(values)} seeds"
    mean, std = spread(values)
    return f"{mean:{form}}" if math.isnan(std) else f"{mean:{form}} ± {std:{form}}"


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
