"""Reads the folders of runs: config, tables and partition. Torch-free."""

import csv
import io
import json
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from flfast.output.results.columns import CLIENT_EVALUATION, COLUMNS
from flfast.output.results.history import Row, number, series, validation_column
from flfast.output.results.outcome import Outcome, error_of, outcome
from flfast.output.results.plain_yaml import read_mapping, read_words
from flfast.output.results.table import read_rounds
from flfast.state.messages import printable
from flfast.state.moved import renamed
from flfast.state.regular_file import opener, read_file

log = logging.getLogger(__name__)

NUMERIC = [column for column in COLUMNS if not column.startswith("plan/")]
"""Columns of `metrics.csv` that hold numbers."""
_TAIL_BYTES = 16 * 2**20


class RunRecord(NamedTuple):
    """A run, as its folder tells.

    Attributes:
        folder: of the run.
        num: Hydra's job number; None if the run belongs to no sweep.
        overrides: by key.
        choices: option of each config group, such as `algorithm` -> `fedprox`.
        config: nested, interpolations unresolved.
        history: rows of `metrics.csv`, values as text.
        outcome: what has become of it.
        counts: whether it has finished and wrote rows: only then its results are compared.
        error: message of the error that ended it, in one line.
        optimized: the column whose last value Hydra's sweeper got.
    """

    folder: Path
    num: int | None
    overrides: dict[str, str]
    choices: dict[str, str]
    config: dict[str, Any]
    history: list[Row]
    outcome: Outcome
    counts: bool
    error: str
    optimized: str

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
    hydra = mapping(read_mapping(hydra_dir / "hydra.yaml").get("hydra"))
    num = mapping(hydra.get("job")).get("num")
    words = read_words(hydra_dir / "overrides.yaml")
    config: dict[str, Any] = renamed(read_mapping(hydra_dir / "config.yaml"))
    history: list[Row] = []
    try:
        history.extend(read_rounds(folder / "metrics.csv", sys.maxsize))
        for metric in NUMERIC:
            series(history, metric)
    except (OSError, ValueError) as error:
        history.clear()
        log.warning("%s is not compared: %s", folder, error)
    optimized = str(config.get("optimized_metric", "auto"))
    found = outcome(folder)
    return RunRecord(
        folder=folder,
        num=num if isinstance(num, int) else None,
        overrides={key.lstrip("+"): value for key, _, value in (w.partition("=") for w in words)},
        choices={
            str(group): str(option)
            for group, option in mapping(mapping(hydra.get("runtime")).get("choices")).items()
            if not str(group).startswith("hydra") and option is not None
        },
        config=config,
        history=history,
        outcome=found,
        counts=found == "finished" and bool(history),
        error=error_of(folder),
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


def last_clients(run: RunRecord) -> list[Row]:
    """Rows of `clients.csv` of the last round in which clients were evaluated.

    Only the last 16 MiB of the file are read. The list is empty if there is no such round.
    """
    path = run.folder / "clients.csv"
    if not path.exists():
        return []
    with open(path, "rb", opener=opener) as file:
        head = file.readline()
        size = file.seek(0, io.SEEK_END)
        start = file.seek(max(len(head), size - _TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    if start > len(head):
        text = text[text.find("\n") + 1 :]
    complete = head.decode("utf-8", errors="replace") + text[: text.rfind("\n") + 1]
    rows = list(csv.DictReader(io.StringIO(printable(complete))))
    rows = [row for row in rows if row.get("round") and (row.get("client_id") or "").isdecimal()]
    evaluated = [row for row in rows if any(row.get(column) for column in CLIENT_EVALUATION)]
    last = max((number(row, "round") for row in evaluated), default=-1)
    return [row for row in evaluated if number(row, "round") == last]


def partition(run: RunRecord) -> dict[str, Any]:
    """The contents of `partition.json`; empty if it cannot be read."""
    try:
        found = json.loads(read_file(run.folder / "partition.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if _is_partition(found) else {}


def _is_partition(found: Any) -> bool:
    """Whether this has the parts that a report shows, with the types that it needs."""
    numbers = ("num_clients", "num_classes", "num_examples", "num_central_test")
    parts = mapping(found)
    clients, sizes = parts.get("clients"), mapping(parts.get("client_size"))
    return (
        all(isinstance(parts.get(name), int) for name in numbers)
        and all(isinstance(sizes.get(name), (int, float)) for name in ("min", "median", "max"))
        and isinstance(parts.get("class_names", []), list)
        and isinstance(clients, list)
        and all(map(_is_client, clients))
    )


def _is_client(client: Any) -> bool:
    labels = mapping(client).get("labels")
    return (
        all(isinstance(mapping(client).get(name), int) for name in ("client_id", "train", "test"))
        and isinstance(labels, list)
        and all(isinstance(count, int) for count in labels)
    )


def mapping(node: Any) -> dict[str, Any]:
    """A part of a config that has keys; {} if it is anything else."""
    return node if isinstance(node, dict) else {}
