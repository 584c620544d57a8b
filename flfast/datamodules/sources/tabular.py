"""Tables in CSV or Parquet files, with named columns."""

import logging
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.number_range import ALL, fitted_scales, refuse_outliers, scaled
from flfast.datamodules.preprocessing import FILE, ColumnScale, TableColumns
from flfast.datamodules.sources.source import RawInputs
from flfast.datamodules.sources.table_columns import (
    Filling,
    Fit,
    as_scales,
    by_name,
    columns_as_float32,
    fit_columns,
    raw_rows,
    row_clients,
    table_inputs,
)
from flfast.datamodules.sources.table_files import Columns, read_table
from flfast.datamodules.sources.table_targets import ColumnSource, Targets, listed, read_targets
from flfast.datamodules.value_names import marked_for_testing

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Table(ColumnSource):
    """Rows as inputs float32 [N, numeric + categorical columns], in the order of the file.

    Numeric columns come first. The others hold the numbers of categories, from 0 in sorted order;
    `Examples.categories` says how many each column has.

    A federation would compute what `standardise=all` needs by one secure sum; what `client` needs,
    nobody else learns. `missing=category` makes missing values of a categorical column a category,
    the first one, and refuses all others. `mean`, `median` (of training rows) and `constant` also
    fill in numbers, before they are scaled. `task` is the learning task; None is `regression` for
    targets of the type float, `classification` for text and for integers of at most 100 different
    values. The seed determines a drawn test set. With `kept`, the preprocessing of a trained
    model, rows become what they were for that model.
    """

    targets: str | list[str]
    numeric: list[str] | None
    categorical: list[str] | None
    is_test: str | None
    standardise: Literal["none", "all", "client"]
    standardise_targets: bool
    fill: float | None
    missing_indicator: bool

    def load(self) -> Examples:
        """All rows that are complete."""
        if self.standardise == "client" and self.owner is None:
            raise ValueError(
                "data.standardise=client needs data.owner, the column that names the clients; "
                "allowed without it: none, all"
            )
        columns, numeric, categorical = self._read()
        columns, rows, is_test = self._complete(columns, numeric, categorical)
        found = read_targets(columns, self.goals, self.task, self.kept_classes)
        clients, is_test = self.split_rows(columns, is_test, found)
        rows_of = row_clients(**clients) if self.standardise == "client" else None
        fit = Fit(~is_test, self.standardise != "none", rows_of, self._filling)
        fitted = self._kept or fit_columns(columns, numeric, categorical, fit)
        inputs = table_inputs(columns, fitted, rows_of)
        targets, scales = self._values(found, is_test)
        described = (
            f"{name}: {', '.join(map(str, texts))}" for name, texts in fitted.categories.items()
        )
        return Examples(
            inputs=torch.from_numpy(inputs),
            targets=torch.from_numpy(targets),
            num_classes=found.num_outputs,
            is_test=is_test,
            task=found.task,
            categories=tuple(map(len, fitted.categories.values())),
            input_names=(*numeric, *(f"no {name}" for name in fitted.indicators), *described),
            class_names=found.names,
            columns=fitted.model_copy(update={"targets": scales}),
            rows=rows,
            **clients,
        )

    def raw_inputs(self, key: str | None) -> RawInputs:
        """Inputs of all rows that are complete; targets and test rows need not be in the file."""
        kept = self._kept
        if kept is None:
            raise ValueError(f"the run has no {FILE}; allowed: a run that has written one")
        owner = self.owner if kept.clients else None
        texts = [*kept.categories, *listed(key), *listed(owner)]
        columns = Columns(read_table(self.path, names=texts), self.path)
        return raw_rows(columns, kept, key=key, owner=owner, missing=self.missing)

    @property
    def _filling(self) -> Filling | None:
        """What replaces missing numbers.

        Raises:
            ValueError: if `fill` or `missing_indicator` would change nothing.
        """
        if self.missing in {"error", "drop", "category"}:
            if self.missing_indicator or self.fill is not None:
                key = "missing_indicator=true" if self.missing_indicator else f"fill={self.fill:g}"
                raise ValueError(
                    f"data.{key} with data.missing={self.missing}: no number is filled in; "
                    "allowed: data.missing=mean, median or constant"
                )
            return None
        if (self.missing == "constant") != (self.fill is not None):
            raise ValueError(
                f"data.missing={self.missing} data.fill={self.fill}: a constant is a number, and "
                "others have none; allowed: data.missing=constant data.fill=0, or data.fill=null"
            )
        by = self.fill if self.fill is not None else self.missing
        return Filling(by, self.missing_indicator)  # type: ignore[arg-type] # one of its words

    @property
    def _kept(self) -> TableColumns | None:
        """How a trained model reads columns."""
        return None if self.kept is None else self.kept.columns

    def _read(self) -> tuple[Columns, list[str], list[str]]:
        """All columns, and names of the numeric and of the categorical ones."""
        others = [*listed(self.owner), *listed(self.is_test)]
        kept = self._kept
        numeric = self.numeric if kept is None else [*kept.numeric]
        categorical = self.categorical if kept is None else [*kept.categories]
        texts = [*self.text_columns, *listed(self.is_test), *(categorical or [])]
        columns = Columns(read_table(self.path, names=texts), self.path)
        if not self.goals:
            raise ValueError("data.targets=[] names no column")
        columns.require(self.goals, "targets")
        columns.require(listed(self.owner), "owner")
        columns.require(listed(self.is_test), "is_test")
        leave = [*self.goals, *others]
        return columns, *_features(columns, numeric, categorical, leave)

    def _complete(
        self, columns: Columns, numeric: list[str], categorical: list[str]
    ) -> tuple[Columns, np.ndarray, np.ndarray | None]:
        """The complete rows, their numbers in the file, and which are for testing, if known."""
        roles = {"targets": self.goals}
        if self._filling is None:
            roles["numeric"] = numeric
        if self._filling is None and self.missing != "category":
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
        rows = np.flatnonzero(kept)
        return columns.kept(kept), rows, None if is_test is None else is_test[kept]

    def _values(
        self, read: Targets, is_test: np.ndarray
    ) -> tuple[np.ndarray, dict[str, ColumnScale | None]]:
        """Targets, and their scales; numbers to predict become float32, perhaps standardised."""
        names, kept = self.goals, self._kept
        scales: dict[str, ColumnScale | None] = dict.fromkeys(names)
        if read.task != "regression":
            return read.values, scales
        values = read.values
        if self.standardise_targets:
            fitted = (
                fitted_scales(values, is_training=~is_test, names=names)[ALL]
                if kept is None
                else as_scales(kept.targets, names)
            )
            values = scaled(values, {ALL: fitted}, names=names)
            scales = {**by_name(names, fitted)}
        values = columns_as_float32(values, "targets", names)
        if not self.standardise_targets:
            where = [f"data.targets={name}" for name in names]
            refuse_outliers(values, names=where, rows=np.arange(len(values)))
        return values, scales


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
    is_open = None in (numeric, categorical)
    free = columns.free(used) if is_open else [n for n in columns.names if n not in used]
    if numeric is None:
        numeric = [name for name in free if columns.kind(name) != "text"]
    if categorical is None:
        categorical = [name for name in free if columns.kind(name) == "text"]
        for name in categorical:
            columns.refuse_odd_numbers(name, f"say data.categorical=[{name}, ...]")
    if not numeric and not categorical:
        raise ValueError("data.numeric and data.categorical leave no column as input")
    if unread := [name for name in free if name not in {*numeric, *categorical}]:
        log.info("data=table does not read the columns %s", ", ".join(unread))
    return list(numeric), list(categorical)
