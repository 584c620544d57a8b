"""Reads the folders of runs: config, tables and partition. Torch-free."""

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from flfast.output.results.history import Row, validation_column
from flfast.output.results.outcome import Outcome, outcome, read_result
from flfast.output.results.table import read_clients, read_history
from flfast.state.messages import first_line
from flfast.state.plain_yaml import read_yaml
from flfast.state.regular_file import read_file

log = logging.getLogger(__name__)

T = TypeVar("T")


class RunRecord(NamedTuple):
    """A run, as its folder tells.

    Attributes:
        folder: folder of the run.
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
        ValueError: with the path, if one of Hydra's files is damaged.
    """
    hydra_dir = folder / ".hydra"
    hydra = _hydra(folder)
    num = _job_number(hydra, hydra_dir / "hydra.yaml")
    words = read_yaml(hydra_dir / "overrides.yaml", list)
    config: dict[str, Any] = read_yaml(hydra_dir / "config.yaml", dict)
    history: list[Row] = []
    try:
        history = read_history(folder / "metrics.csv")
    except (OSError, ValueError) as error:
        log.warning("%s is not compared: %s", folder, error)
    optimized = str(config.get("optimized_metric", "auto"))
    found, said = outcome(folder), read_result(folder)
    return RunRecord(
        folder=folder,
        num=num,
        overrides={key.lstrip("+"): value for key, _, value in (w.partition("=") for w in words)},
        choices=_choices(hydra),
        config=config,
        history=history,
        outcome=found,
        counts=found == "finished" and bool(history),
        error="" if said is None else said.error,
        optimized=validation_column(history) if optimized == "auto" else optimized,
    )


def read_choices(folder: Path) -> dict[str, str]:
    """The option of each config group of the run in a folder.

    Raises:
        OSError: if `hydra.yaml` cannot be read.
        ValueError: with the path, if it is damaged.
    """
    return _choices(_hydra(folder))


def _hydra(folder: Path) -> dict[str, Any]:
    return mapping(read_yaml(folder / ".hydra" / "hydra.yaml", dict).get("hydra"))


def _choices(hydra: dict[str, Any]) -> dict[str, str]:
    found = mapping(mapping(hydra.get("runtime")).get("choices"))
    return {
        str(group): str(option)
        for group, option in found.items()
        if not str(group).startswith("hydra") and option is not None
    }


def _job_number(hydra: dict[str, Any], path: Path) -> int | None:
    num = mapping(hydra.get("job")).get("num", "???")
    if num == "???":  # a single run's
        return None
    if type(num) is not int or num < 0:
        raise ValueError(f"{path}: hydra.job.num={num}; allowed: a number >= 0, or ???")
    return num


def run_folders(folder: Path) -> list[Path]:
    """Folders of all runs in and below a folder, also of those that lack a file of Hydra's."""
    return sorted({path.parents[1] for path in folder.rglob(".hydra/*.yaml")})


def read_each(folders: Iterable[Path], read: Callable[[Path], T]) -> list[T]:
    """What `read` finds in each folder; a folder that it refuses is left out, with a warning.

    Raises:
        OSError: that of the first folder, if all are refused; or `ValueError`.
    """
    found: list[T] = []
    refused: list[OSError | ValueError] = []
    for folder in folders:
        try:
            one = read(folder)
        except (OSError, ValueError) as error:
            refused.append(error)
            continue
        found.append(one)
    if refused and not found:
        raise refused[0]
    for reason in refused:
        log.warning("a run is left out: %s", first_line(reason))
    return found


def find_runs(folders: Iterable[Path]) -> list[RunRecord]:
    """All runs in and below folders, each once; those of a sweep by job number.

    A damaged one is left out with a warning, unless all are damaged.

    Raises:
        OSError: if a folder does not exist, or holds no run, or none can be read.
        ValueError: with the path, if one of Hydra's files is damaged in each of them.
    """
    found: dict[Path, RunRecord] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder")
        below = run_folders(folder)
        if not below:
            raise FileNotFoundError(
                f"{folder}: holds no run; a run's folder has .hydra/overrides.yaml"
            )
        runs = read_each(below, read_run)
        runs.sort(key=lambda run: (run.folder.parent, -1 if run.num is None else run.num))
        for run in runs:
            found.setdefault(run.folder.resolve(), run)
    return list(found.values())


def read_jobs(sweep_dir: Path) -> list[RunRecord]:
    """All jobs below a sweep folder, by number.

    A damaged one is left out with a warning, and a single run that happens to lie there without.
    """
    try:
        runs = read_each(run_folders(sweep_dir), read_run)
    except (OSError, ValueError) as error:
        log.warning("no job can be read: %s", first_line(error))
        return []
    return sorted((run for run in runs if run.num is not None), key=lambda run: run.num or 0)


def last_clients(run: RunRecord) -> list[Row]:
    """Rows of `clients.csv`, see `read_clients`; empty if there is no file.

    A damaged file is left out with a warning.
    """
    path = run.folder / "clients.csv"
    try:
        return read_clients(path) if path.exists() else []
    except (OSError, ValueError) as error:
        log.warning("clients are not shown: %s", first_line(error))
        return []


def partition(run: RunRecord) -> dict[str, Any]:
    """The contents of `partition.json`; empty if there is none.

    A damaged file is left out with a warning.
    """
    path = run.folder / "partition.json"
    if not path.exists():
        return {}
    try:
        content = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError):
        content = None
    if not _is_partition(content):
        log.warning("clients' data are not shown: %s is not what a run writes", path)
        return {}
    return dict(content)


def _is_partition(content: Any) -> bool:
    """Whether this has the parts that a report shows, with the types that it needs."""
    numbers = ("num_clients", "num_classes", "num_examples", "num_central_test")
    parts = mapping(content)
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
    neighbours = mapping(client).get("neighbours", [])
    return (
        all(isinstance(mapping(client).get(name), int) for name in ("client_id", "train", "test"))
        and isinstance(labels, list)
        and isinstance(neighbours, list)
        and all(isinstance(count, int) for count in [*labels, *neighbours])
    )


def mapping(node: Any) -> dict[str, Any]:
    """A part of a config that has keys; {} if it is anything else."""
    return node if isinstance(node, dict) else {}
