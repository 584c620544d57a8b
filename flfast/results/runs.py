"""Reads the folders of runs: config, tables and partition. Torch-free."""

import csv
import io
import json
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flfast.messages import one_line
from flfast.results.columns import CLIENT_EVALUATION, COLUMNS
from flfast.results.history import Row, number, series, validation_column
from flfast.results.table import read_rounds

log = logging.getLogger(__name__)

FAILED_MARK = "failed"
NUMERIC = [column for column in COLUMNS if not column.startswith("plan/")]
"""Columns of `metrics.csv` that hold numbers."""
_END = 20  # lines of a log
_TAIL_BYTES = 16 * 2**20
# C's parser reads a config in 2 ms; OmegaConf.load takes 50 ms.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RunRecord(NamedTuple):
    """A run, as its folder tells.

    Attributes:
        folder: of the run.
        num: Hydra's job number; None if the run belongs to no sweep.
        overrides: by key.
        choices: option of each config group, such as `algorithm` -> `fedprox`.
        config: nested, interpolations unresolved.
        history: rows of `metrics.csv`, values as text.
        failed: whether the run raised, or wrote no row that can be read.
        error: message of the error that a job of a sweep raised, in one line.
        optimized: the column whose last value Hydra's sweeper got.
    """

    folder: Path
    num: int | None
    overrides: dict[str, str]
    choices: dict[str, str]
    config: dict[str, Any]
    history: list[Row]
    failed: bool
    error: str
    optimized: str

    @property
    def unfinished(self) -> bool:
        """Whether rounds are missing, of a run that could not end before its last one."""
        rounds = self.config.get("rounds")
        if not isinstance(rounds, int) or not self.history:
            return False
        if self.config.get("trainer", {}).get("fast_dev_run"):
            return False
        return int(self.history[-1]["round"]) < rounds and not ended_early(log_lines(self.folder))

    @property
    def seed(self) -> str:
        """The run's seed as text; empty if the config has none."""
        return str(self.config.get("seed", ""))


def read_run(folder: Path) -> RunRecord:
    """The run in a folder.

    Raises:
        OSError: if the folder holds no run, or it cannot be read.
        ValueError: with the path, if the config is no YAML.
    """
    hydra_dir = folder / ".hydra"
    hydra = read_yaml(hydra_dir / "hydra.yaml").get("hydra", {})
    num = hydra.get("job", {}).get("num")
    words = [str(word) for word in read_yaml(hydra_dir / "overrides.yaml") or ()]
    config = read_yaml(hydra_dir / "config.yaml")
    history: list[Row] = []
    try:
        history.extend(read_rounds(folder / "metrics.csv", sys.maxsize))
        for metric in NUMERIC:
            series(history, metric)
    except (OSError, ValueError) as error:
        history.clear()
        log.warning("%s is not compared: %s", folder, error)
    optimized = str(config.get("optimized_metric", "auto"))
    mark = hydra_dir / FAILED_MARK
    return RunRecord(
        folder=folder,
        num=num if isinstance(num, int) else None,
        overrides={key.lstrip("+"): value for key, _, value in (w.partition("=") for w in words)},
        choices={
            group: str(option)
            for group, option in hydra.get("runtime", {}).get("choices", {}).items()
            if not group.startswith("hydra") and option is not None
        },
        config=config,
        history=history,
        failed=not history or mark.exists(),
        error=mark.read_text(encoding="utf-8") if mark.exists() else "",
        optimized=validation_column(history) if optimized == "auto" else optimized,
    )


def find_runs(folders: Iterable[Path]) -> list[RunRecord]:
    """All runs in and below folders, each once; those of a sweep by job number.

    Raises:
        FileNotFoundError: if a folder does not exist, or holds no run.
    """
    found: dict[Path, RunRecord] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder")
        below = [path.parents[1] for path in folder.rglob(".hydra/overrides.yaml")]
        if not below:
            raise FileNotFoundError(
                f"{folder}: holds no run; a run's folder has .hydra/overrides.yaml"
            )
        runs = [read_run(path) for path in sorted(below)]
        runs.sort(key=lambda run: (run.folder.parent, -1 if run.num is None else run.num))
        for run in runs:
            found.setdefault(run.folder.resolve(), run)
    return list(found.values())


def log_lines(folder: Path) -> list[str]:
    """Lines of a run's log; empty if there is none."""
    path = folder / "train.log"
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


def ended_early(lines: list[str]) -> bool:
    """Whether a run's log says that `stop` ended it before its last round."""
    return any("[INFO] - ends after round " in line for line in lines[-_END:])


def last_clients(run: RunRecord) -> list[Row]:
    """Rows of `clients.csv` of the last round in which clients were evaluated.

    Only the last 16 MiB of the file are read. The list is empty if there is no such round.
    """
    path = run.folder / "clients.csv"
    if not path.exists():
        return []
    with path.open("rb") as file:
        head = file.readline()
        size = file.seek(0, io.SEEK_END)
        start = file.seek(max(len(head), size - _TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    if start > len(head):
        text = text[text.find("\n") + 1 :]
    complete = text[: text.rfind("\n") + 1]
    rows = list(csv.DictReader(io.StringIO(head.decode("utf-8", errors="replace") + complete)))
    evaluated = [row for row in rows if any(row.get(column) for column in CLIENT_EVALUATION)]
    last = max((number(row, "round") for row in evaluated), default=-1)
    return [row for row in evaluated if number(row, "round") == last]


def partition(run: RunRecord) -> dict[str, Any]:
    """The contents of `partition.json`; empty if it cannot be read."""
    try:
        found = json.loads((run.folder / "partition.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_yaml(path: Path) -> Any:
    """The content of a file of `.hydra`, interpolations unresolved; `{}` if it is empty.

    Raises:
        OSError: if it cannot be read.
        ValueError: with the path, if it is no YAML of plain data.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _LOADER) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML of plain data: {one_line(error)}") from None
