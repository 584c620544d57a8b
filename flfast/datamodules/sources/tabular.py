"""Tables in CSV or Parquet files, with named columns."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.number_range import as_float32, refuse_outliers, standardised
from flfast.datamodules.sources.table_files import Columns, read_table
from flfast.datamodules.sources.table_targets import ColumnSource, Targets, listed, read_targets
from flfast.datamodules.value_names import marked_for_testing, warn_of_odd_names


@dataclass(frozen=True, kw_only=True)
class Table(ColumnSource):
    """Rows as inputs float32 [N, numeric + categorical columns], in the order of the file.

    Numeric columns come first. The others hold the numbers of categories, from 0 in sorted order;
    `Examples.categories` says how many each column has.

    A federation would compute what `standardise=all` needs by one secure sum; what `client` needs,
    nobody else learns. `missing=category` makes missing values of a categorical column a category,
    the first one, and refuses all others. `task` is the learning task; None is `regression` for
    targets of the type float, `classification` for text and for integers of at most 100 different
    values. The seed determines a drawn test set.
    """

    targets: str | list[str]
    numeric: list[str] | None
    categorical: list[str] | None
    is_test: str | None
    standardise: Literal["none", "all", "client"]
    standardise_targets: bool

    def load(self) -> Examples:
        """All rows that are complete."""
        if self.standardise == "client" and self.owner is None:
            raise ValueError(
                "data.standardise=client needs data.owner, the column that names the clients; "
                "allowed without it: none, all"
            )
        columns, numeric, categorical = self._read()
        columns, is_test = self._complete(columns, numeric, categorical)
        found = read_targets(columns, self.goals, self.task)
        clients, is_test = self.split_rows(columns, is_test, found)
        numbers = _stack([columns.numbers(name) for name in numeric], len(is_test))
        if self.standardise != "none":
            group = clients.get("owner") if self.standardise == "client" else None
            numbers = standardised(numbers, is_training=~is_test, group=group, names=numeric)
        numbers = _as_float32(numbers, "numeric", numeric)
        coded = {name: columns.codes(name) for name in categorical}
        for name, (codes, texts) in coded.items():
            warn_of_odd_names(f"data.categorical={name}", texts, codes)
        rows = np.column_stack([numbers, *(codes for codes, _ in coded.values())])
        described = (f"{name}: {', '.join(map(str, texts))}" for name, (_, texts) in coded.items())
        return Examples(
            inputs=torch.from_numpy(rows.astype(np.float32)),
            targets=torch.from_numpy(self._values(found, is_test)),
            num_classes=found.num_outputs,
            is_test=is_test,
            task=found.task,
            categories=tuple(len(texts) for _, texts in coded.values()),
            input_names=(*numeric, *described),
            class_names=found.names,
            **clients,
        )

    def _read(self) -> tuple[Columns, list[str], list[str]]:
        """All columns, and names of the numeric and of the categorical ones."""
        others = [*listed(self.owner), *listed(self.is_test)]
        texts = [*self.text_columns, *listed(self.is_test), *(self.categorical or [])]
        columns = Columns(read_table(self.path, names=texts), self.path)
        if not self.goals:
            raise ValueError("data.targets=[] names no column")
        columns.require(self.goals, "targets")
        columns.require(listed(self.owner), "owner")
        columns.require(listed(self.is_test), "is_test")
        leave = [*self.goals, *others]
        return columns, *_features(columns, self.numeric, self.categorical, leave)

    def _complete(
        self, columns: Columns, numeric: list[str], categorical: list[str]
    ) -> tuple[Columns, np.ndarray | None]:
        """The complete rows, and which are for testing, if a column says so."""
        roles = {"targets": self.goals, "numeric": numeric}
        if self.missing != "category":
            roles["categorical"] = categorical
        lacking = {
            f"data.{option}={name}": columns.missing(name)
            for option, names in roles.items()
            for name in names
        }
        is_test = None
        if self.is_test is not None:
            where = f"data.is_test={self.is_test}"
            lacking[where] = columns.missing(self.is_test)
            is_test = marked_for_testing(where, columns.as_names(self.is_test))
        kept = self.complete(columns, lacking, is_test)
        return columns.kept(kept), None if is_test is None else is_test[kept]

    def _values(self, read: Targets, is_test: np.ndarray) -> np.ndarray:
        """Targets; numbers to predict become float32, perhaps standardised."""
        if read.task != "regression":
            return read.values
        if self.standardise_targets:
            values = standardised(read.values, is_training=~is_test, names=self.goals)
            return _as_float32(values, "targets", self.goals)
        values = _as_float32(read.values, "targets", self.goals)
        names = [f"data.targets={name}" for name in self.goals]
        refuse_outliers(values, names=names, rows=np.arange(len(values)))
        return values


def _features(
    columns: Columns, numeric: list[str] | None, categorical: list[str] | None, leave: list[str]
) -> tuple[list[str], list[str]]:
    """Names of the numeric and of the categorical columns."""
    columns.require(numeric or [], "numeric")
    columns.require(categorical or [], "categorical")
    if both := set(numeric or []) & set(categorical or []):
        raise ValueError(f"data.numeric and data.categorical both name {sorted(both)}")
    used = {*leave, *(numeric or []), *(categorical or [])}
    if wrong := set(leave) & ({*(numeric or [])} | {*(categorical or [])}):
        raise ValueError(
            f"data.numeric and data.categorical name {sorted(wrong)}, which data.targets, "
            "data.owner or data.is_test name, too"
        )
    free = columns.free(used) if None in (numeric, categorical) else []
    if numeric is None:
        numeric = [name for name in free if columns.kind(name) != "text"]
    if categorical is None:
        categorical = [name for name in free if columns.kind(name) == "text"]
        for name in categorical:
            columns.refuse_odd_numbers(name, f"say data.categorical=[{name}, ...]")
    if not numeric and not categorical:
        raise ValueError("data.numeric and data.categorical leave no column as input")
    return list(numeric), list(categorical)


def _stack(columns: list[np.ndarray], num_rows: int) -> np.ndarray:
    return np.stack(columns, axis=1) if columns else np.zeros((num_rows, 0))


def _as_float32(values: np.ndarray, option: str, names: list[str]) -> np.ndarray:
    """Columns of numbers as float32 [N, D]; names the column of a number that is too large."""
    columns = zip(names, values.T, strict=True)
    found = [as_float32(f"data.{option}={name}", own) for name, own in columns]
    return _stack(found, len(values))
