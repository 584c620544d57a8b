"""What the files in a folder say about a run or a sweep. Torch-free."""

import math
import statistics
from pathlib import Path
from typing import NamedTuple

from flfast.output.results.history import Row, number, total
from flfast.output.results.outcome import Outcome, is_locked, log_lines, outcome
from flfast.output.results.runs import run_folders
from flfast.output.results.table import read_history
from flfast.state.plain_yaml import read_yaml

_RECENT = 10
"""Rounds whose median duration predicts the rest."""

_WARNINGS = 3


class Progress(NamedTuple):
    """How far a run is.

    Attributes:
        folder: folder of the run.
        overrides: overrides of its command line.
        rounds: that it shall have.
        history: rows of `metrics.csv`, values as text; empty before round 0.
        outcome: what has become of it.
        warnings: its last warnings.
    """

    folder: Path
    overrides: list[str]
    rounds: int
    history: list[Row]
    outcome: Outcome
    warnings: list[str]

    @property
    def last(self) -> int:
        """The last round that is in the table; -1 before round 0."""
        return int(number(self.history[-1], "round")) if self.history else -1

    @property
    def seconds_a_round(self) -> float:
        """Median of the last rounds, training and evaluation; NaN before round 1."""
        rows = [row for row in self.history[-_RECENT:] if number(row, "round") > 0]
        seconds = [total([row], "time/train_s", "time/eval_s") for row in rows]
        return statistics.median(seconds) if seconds else math.nan

    @property
    def seconds_left(self) -> float:
        """Until the last round, if rounds go on taking as long; NaN before round 1."""
        return (self.rounds - self.last) * self.seconds_a_round

    @property
    def status(self) -> str:
        """The outcome in one word; a job without a folder waits, one without rows starts."""
        if self.outcome == "empty":
            return "waits"
        return "starts" if self.outcome == "running" and not self.history else self.outcome


def read_progress(folder: Path) -> Progress:
    """How far the run of a folder is.

    Raises:
        OSError: if a file is missing, or is no file.
        ValueError: with its path, if the config or a table is damaged.
    """
    hydra = folder / ".hydra"
    lines = (line.partition("[WARNING] - ") for line in log_lines(folder))
    return Progress(
        folder=folder,
        overrides=read_yaml(hydra / "overrides.yaml", list),
        rounds=_rounds(hydra / "config.yaml"),
        history=read_history(folder / "metrics.csv"),
        outcome=outcome(folder),
        warnings=[text for _, mark, text in lines if mark][-_WARNINGS:],
    )


def _rounds(path: Path) -> int:
    """Rounds that a run shall have, by its config; 0 if they are `${...}`, not looked up."""
    config = read_yaml(path, dict)
    trainer = config.get("trainer")
    is_trial = isinstance(trainer, dict) and trainer.get("fast_dev_run")
    found = 1 if is_trial else config.get("rounds")
    if isinstance(found, str) and "${" in found:
        return 0
    if type(found) is not int or found < 1:
        raise ValueError(f"{path}: rounds={found}; allowed: an integer >= 1, as a run writes it")
    return found


def jobs_of(folder: Path) -> list[Path]:
    """Folders of the jobs of a sweep, in the order of their numbers; of a run, its own one."""
    if any((folder / ".hydra").glob("*.yaml")):
        return [folder] if _is_written(folder) else []
    found = [job for job in run_folders(folder) if _is_written(job)]
    return sorted(found, key=lambda job: (len(job.name), job.name))


def _is_written(job: Path) -> bool:
    """Whether Hydra's files are there; while a job starts, the last one is missing."""
    return (job / ".hydra" / "overrides.yaml").exists() or not is_locked(job)


def newest(root: Path) -> Path | None:
    """The folder below `outputs` and `multirun` that was made last; None if there is none."""
    found = [path for kind in ("outputs", "multirun") for path in (root / kind).glob("*/*")]
    runs = (path for path in found if is_locked(path) or jobs_of(path))
    return max(runs, key=lambda path: path.stat().st_mtime, default=None)
