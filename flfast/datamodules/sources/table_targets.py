"""What columns hold: targets (classes, real numbers, labels or times), clients and test rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from flfast.datamodules.examples import check_targets
from flfast.datamodules.missing import complete_rows
from flfast.datamodules.number_range import as_float32
from flfast.datamodules.preprocessing import Preprocessing
from flfast.datamodules.sources.held_out import held_out_test
from flfast.datamodules.sources.source import DataSource
from flfast.datamodules.sources.table_files import Columns
from flfast.datamodules.value_names import (
    names_of,
    number_clients,
    unowned,
    warn_of_odd_names,
)
from flfast.state.options import BelowOne
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


def read_targets(
    columns: Columns,
    names: list[str],
    task: TaskName | None,
    classes: Sequence[str] | None = None,
) -> Targets:
    """Targets from columns, at least one.

    Without a task, it is `regression` if a column is of the type float, `classification`
    otherwise. `classes` are the names of the classes that a trained model has, by number.

    Raises:
        ValueError: if the columns do not fit the task, or without a task for integers of more
            than 100 different values, which could be classes or numbers, or if there is a class
            that the model does not have.
    """
    if task == "classification" and classes is not None:
        return _classes(columns, names, classes)
    read = _READERS.get(task or _task_of(columns, names))
    if read is None:
        raise ValueError(
            f"task={task} with data.targets={names}; allowed: {', '.join(_READERS)}, or auto"
        )
    return read(columns, names)


@dataclass(frozen=True, kw_only=True)
class ColumnSource(DataSource):
    """Options of rows in columns: which column holds what, and how the rows are divided."""

    path: str
    targets: str | list[str] | None
    owner: str | None
    test_fraction: BelowOne
    missing: Literal["error", "drop", "category", "mean", "median", "constant"]
    task: TaskName | None
    seed: int
    kept: Preprocessing | None = None

    @property
    def kept_classes(self) -> Sequence[str] | None:
        """Names of the classes that a trained model has."""
        if self.kept is None or self.kept.task != "classification":
            return None
        return self.kept.classes or [*map(str, range(self.kept.num_outputs))]

    @property
    def goals(self) -> list[str]:
        """The columns to predict."""
        return listed(self.targets)

    @property
    def text_columns(self) -> list[str]:
        """Columns that are read as text: names of clients, and of classes if there may be any."""
        classes = self.goals if self.task in {None, "classification"} else []
        return [*listed(self.owner), *classes]

    def complete(
        self, columns: Columns, lacking: dict[str, np.ndarray], is_test: np.ndarray | None
    ) -> np.ndarray:
        """The complete rows, bool [N]; incomplete ones are refused or left out.

        `lacking` has the rows that lack a value, bool [N], by key and column, except for clients.

        Raises:
            ValueError: if rows are refused, or none is left for training.
        """
        if self.owner is not None:
            without = unowned(columns.as_names(self.owner), is_test)
            lacking = lacking | {f"data.owner={self.owner}": without}
        return complete_rows(lacking, self.missing, is_test=is_test)

    def split_rows(
        self, columns: Columns, is_test: np.ndarray | None, read: Targets | None
    ) -> tuple[dict[str, Any], np.ndarray]:
        """`owner` and `client_names` of `Examples`, if there are clients, and the test rows [N].

        If `is_test` is None, test rows are drawn from each client, or else from each class.
        """
        clients = dict[str, Any]()
        if self.owner is not None:
            names, where = columns.as_names(self.owner), f"data.owner={self.owner}"
            clients = number_clients(names, is_test, where=where)._asdict()
        if is_test is None:
            groups = np.zeros(columns.num_rows, np.int64) if read is None else read.groups
            groups = clients.get("owner", groups)
            is_test = held_out_test(groups, test_fraction=self.test_fraction, seed=self.seed)
        return clients, is_test


def listed(names: str | list[str] | None) -> list[str]:
    """Names of columns as a list."""
    return [names] if isinstance(names, str) else list(names or [])


def _classes(columns: Columns, names: list[str], classes: Sequence[str] | None = None) -> Targets:
    if len(names) > 1:
        raise ValueError(
            f"data.targets={names}: a classification has one column of targets; allowed for "
            "several: task=regression, multilabel or survival"
        )
    codes, values = columns.codes(names[0], classes)
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
