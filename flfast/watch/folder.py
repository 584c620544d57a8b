"""What the files in a folder say about a run or a sweep. Torch-free."""

import math
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from flfast.config.run_folder import is_locked
from flfast.results.history import Row, number, series
from flfast.results.runs import NUMERIC, ended_early, log_lines, read_yaml
from flfast.results.table import read_rounds

_RECENT = 10
"""Rounds whose median duration predicts the rest."""

_WARNINGS = 3


class Progress(NamedTuple):
    """How far a run is.

    Attributes:
        folder: of the run.
        overrides: of its command line.
        rounds: that it shall have.
        history: rows of `metrics.csv`, values as text; empty before round 0.
        runs: whether a process works in the folder.
        ended: whether it has ended on purpose before its last round.
        warnings: its last warnings.
    """

    folder: Path
    overrides: list[str]
    rounds: int
    history: list[Row]
    runs: bool
    ended: bool
    warnings: list[str]

    @property
    def last(self) -> int:
        """The last round that is in the table; -1 before round 0."""
        return int(number(self.history[-1], "round")) if self.history else -1

    @property
    def seconds_a_round(self) -> float:
        """Median of the last rounds, training and evaluation; NaN before round 1."""
        rows = [row for row in self.history[-_RECENT:] if number(row, "round") > 0]
        return statistics.median(map(_seconds, rows)) if rows else math.nan

    @property
    def seconds_left(self) -> float:
        """Until the last round, if rounds go on taking as long; NaN before round 1."""
        return (self.rounds - self.last) * self.seconds_a_round

    @property
    def status(self) -> str:
        """One word: `starts`, `runs`, `done` or `stopped`."""
        if self.runs:
            return "runs" if self.history else "starts"
        return "done" if self.ended or self.last >= self.rounds else "stopped"


def _seconds(row: Row) -> float:
    parts = (number(row, f"time/{part}_s") for part in ("train", "eval"))
    return sum(part for part in parts if math.isfinite(part))


def read_progress(folder: Path) -> Progress:
    """How far the run of a folder is.

    Raises:
        OSError: if a file of the folder cannot be read.
        ValueError: with its path, if it is damaged.
    """
    hydra = folder / ".hydra"
    lines = log_lines(folder)
    return Progress(
        folder=folder,
        overrides=_words(hydra / "overrides.yaml"),
        rounds=_rounds(hydra / "config.yaml"),
        history=_history(folder / "metrics.csv"),
        runs=is_locked(folder),
        ended=ended_early(lines),
        warnings=[text for _, mark, text in map(_warning, lines) if mark][-_WARNINGS:],
    )


def _words(path: Path) -> list[str]:
    found = read_yaml(path) or []
    if not isinstance(found, list):
        raise ValueError(f"{path}: is no list of overrides, as a run writes it")
    return [str(word) for word in found]


def _rounds(path: Path) -> int:
    """Rounds that a run shall have, by its config."""
    config = read_yaml(path)
    found = config.get("rounds") if isinstance(config, dict) else None
    if not isinstance(found, int):
        raise ValueError(f"{path}: rounds={found}; allowed: an integer, as a run writes it")
    trainer = config.get("trainer")
    return 1 if isinstance(trainer, dict) and trainer.get("fast_dev_run") else found


def _history(path: Path) -> list[Row]:
    history: list[Row] = list(read_rounds(path, sys.maxsize))
    try:
        for column in NUMERIC:
            series(history, column)
    except ValueError as error:
        raise ValueError(f"{path} is no table of numbers: {error}") from None
    return history


def _warning(line: str) -> tuple[str, str, str]:
    return line.partition("[WARNING] - ")


def jobs_of(folder: Path) -> list[Path]:
    """Folders of the jobs of a sweep, in the order of their numbers; of a run, its own one."""
    last = ".hydra/overrides.yaml"  # of what Hydra writes
    if (folder / last).exists():
        return [folder]
    found = [path.parents[1] for path in folder.rglob(last)]
    return sorted(found, key=lambda job: (len(job.name), job.name))


def newest(root: Path) -> Path | None:
    """The folder below `outputs` and `multirun` that was made last; None if there is none."""
    found = [path for kind in ("outputs", "multirun") for path in (root / kind).glob("*/*")]
    return max((p for p in found if jobs_of(p)), key=lambda p: p.stat().st_mtime, default=None)
