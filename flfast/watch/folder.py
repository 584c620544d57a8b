"""What the files in a folder say about a run or a sweep. Torch-free."""

import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from flfast.results.history import Row, number
from flfast.results.outcome import Outcome, is_locked, log_lines, outcome
from flfast.results.table import read_rows

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
        return statistics.median(map(_seconds, rows)) if rows else math.nan

    @property
    def seconds_left(self) -> float:
        """Until the last round, if rounds go on taking as long; NaN before round 1."""
        return (self.rounds - self.last) * self.seconds_a_round

    @property
    def status(self) -> str:
        """The outcome in one word; `starts` instead of `running` before round 0."""
        return "starts" if self.outcome == "running" and not self.history else self.outcome


def _seconds(row: Row) -> float:
    parts = (number(row, f"time/{part}_s") for part in ("train", "eval"))
    return sum(part for part in parts if math.isfinite(part))


def read_progress(folder: Path) -> Progress:
    """How far the run of a folder is.

    Raises:
        ValueError: if the folder's tables cannot be read.
    """
    hydra = folder / ".hydra"
    config = OmegaConf.load(hydra / "config.yaml")
    rounds = OmegaConf.select(config, "rounds")
    if OmegaConf.select(config, "trainer.fast_dev_run", default=False):
        rounds = 1
    return Progress(
        folder=folder,
        overrides=_typed(hydra / "overrides.yaml"),
        rounds=int(rounds),
        history=list(read_rows(folder / "metrics.csv")),
        outcome=outcome(folder),
        warnings=[text for _, mark, text in map(_warning, log_lines(folder)) if mark][-_WARNINGS:],
    )


def _typed(path: Path) -> list[str]:
    """Overrides as they were typed: `${...}` in them is not of this list."""
    words: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    return [str(word) for word in words]


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
    runs = (path for path in found if is_locked(path) or jobs_of(path))
    return max(runs, key=lambda path: path.stat().st_mtime, default=None)
