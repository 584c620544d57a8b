"""Targets of a table: classes and their numbers, real numbers, or labels."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from flfast.datamodules.examples import check_targets
from flfast.datamodules.number_range import as_float32
from flfast.datamodules.sources.held_out import held_out_test
from flfast.datamodules.sources.table_files import Columns
from flfast.datamodules.value_names import Clients, names_of, number_clients, warn_of_odd_names
from flfast.tasks.task_type import TaskName

_MOST_CLASSES = 100
"""Integers of more values may be numbers: some programs write 151.0 as 151."""


class Targets(NamedTuple):
    """Targets of the rows of a table.

    Attributes:
        values: int64 [N] classes, float64 [N, C] numbers, uint8 [N, C] labels, or float32 [N, 2]
            times and events.
        num_outputs: C.
        names: name of each class; empty if the targets are numbers.
    """

    task: TaskName
    values: np.ndarray
    num_outputs: int
    names: tuple[str, ...] = ()

    @property
    def groups(self) -> np.ndarray:
        """Stratum of each row for drawing a test set, int64 [N]: its class, or 0."""
        if self.task == "classification":
            return self.values
        return np.zeros(len(self.values), dtype=np.int64)


def read_targets(columns: Columns, names: list[str], task: TaskName | None) -> Targets:
    """Targets from columns, at least one.

    Without a task, it is `regression` if a column is of the type float, `classification`
    otherwise.

    Raises:
        ValueError: if the columns do not fit the task, or without a task for integers of more
            than 100 different values, which could be classes or numbers.
    """
    read = _READERS.get(task or _task_of(columns, names))
    if read is None:
        raise ValueError(
            f"task={task} with data.targets={names}; allowed: {', '.join(_READERS)}, or auto"
        )
    return read(columns, names)


def split_rows(
    columns: Columns,
    owner: str | None,
    is_test: np.ndarray | None,
    *,
    groups: np.ndarray,
    test_fraction: float,
    seed: int,
) -> tuple[Clients | None, np.ndarray]:
    """The client of each row, None without owners, and the test rows, bool [N].

    If `is_test` is None, test rows are drawn from each client, or else from each of `groups`.
    """
    clients = None
    if owner is not None:
        clients = number_clients(columns.as_names(owner), is_test, where=f"data.owner={owner}")
    if is_test is None:
        groups = groups if clients is None else clients.owner
        is_test = held_out_test(groups, test_fraction=test_fraction, seed=seed)
    return clients, is_test


def _classes(columns: Columns, names: list[str]) -> Targets:
    if len(names) > 1:
        raise ValueError(
            f"data.targets={names}: a classification has one column of targets; allowed for "
            "several: task=regression, multilabel or survival"
        )
    codes, values = columns.codes(names[0])
    warn_of_odd_names(f"data.targets={names[0]}", values, codes)
    return Targets("classification", codes, len(values), names_of(values))


def _numbers(columns: Columns, names: list[str]) -> Targets:
    values = np.stack([columns.numbers(name) for name in names], axis=1)
    return Targets("regression", values, len(names))


def _labels(columns: Columns, names: list[str]) -> Targets:
    values = _numbers(columns, names).values
    if not np.isin(values, (0, 1)).all():
        raise ValueError(f"data.targets={names}: labels of task=multilabel must be 0 or 1")
    return Targets("multilabel", values.astype(np.uint8), len(names))


def _times(columns: Columns, names: list[str]) -> Targets:
    """The first column is the time, the second one says whether the event happened then."""
    if len(names) != 2:
        raise ValueError(
            f"data.targets={names}: task=survival has two columns of targets; allowed: [TIME, "
            "EVENT], a time >= 0, and 1 if the event happened then, 0 if it was censored"
        )
    values = as_float32(f"data.targets={names}", _numbers(columns, names).values)
    check_targets(f"data.targets={names}", values, "survival", 1)
    return Targets("survival", values, 1)


_READERS: dict[str, Callable[[Columns, list[str]], Targets]] = {
    "classification": _classes,
    "regression": _numbers,
    "multilabel": _labels,
    "survival": _times,
}


def _task_of(columns: Columns, names: list[str]) -> Literal["classification", "regression"]:
    kinds = {columns.kind(name) for name in names}
    for name in names:
        columns.refuse_odd_numbers(name, "say task=classification")
    if "float" in kinds:
        return "regression"
    num_values = len(columns.codes(names[0])[1])
    if kinds == {"integer"} and num_values > _MOST_CLASSES:
        raise ValueError(
            f"data.targets={names[0]} has {num_values} different integers; say "
            "task=regression or classification"
        )
    return "classification"
