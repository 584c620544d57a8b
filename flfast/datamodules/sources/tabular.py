"""Tables in CSV or Parquet files, with named columns."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.missing import complete_rows
from flfast.datamodules.number_range import as_float32, refuse_outliers, standardised
from flfast.datamodules.sources.table_files import Columns, read_table
from flfast.datamodules.sources.table_targets import read_targets, split_rows
from flfast.datamodules.value_names import marked_for_testing, unowned, warn_of_odd_names
from flfast.state.options import BelowOne
from flfast.tasks.task_type import TaskName


def table(  # noqa: PLR0913 - one parameter an option
    *,
    path: str,
    targets: str | list[str],
    numeric: list[str] | None,
    categorical: list[str] | None,
    owner: str | None,
    is_test: str | None,
    test_fraction: BelowOne,
    standardise: Literal["none", "all", "client"],
    standardise_targets: bool,
    missing: Literal["error", "drop", "category"],
    task: TaskName | None,
    seed: int,
) -> Examples:
    """Rows as inputs float32 [N, numeric + categorical columns], in the order of the file.

    Numeric columns come first. The others hold the numbers of categories, from 0 in sorted order;
    `Examples.categories` says how many each column has.

    A federation would compute what `standardise=all` needs by one secure sum; what `client` needs,
    nobody else learns. `missing=category` makes missing values of a categorical column a category,
    the first one, and refuses all others. `task` is the learning task; None is `regression` for
    targets of the type float, `classification` for text and for integers of at most 100 different
    values. The seed determines a drawn test set.

    Raises:
        ValueError: if the file cannot be read, or columns are missing or do not fit.
    """
    named = [targets] if isinstance(targets, str) else list(targets)
    others = [name for name in (owner, is_test) if name is not None]
    classes = named if task in {None, "classification"} else []
    columns = Columns(read_table(path, names=[*others, *classes, *(categorical or [])]), path)
    if not named:
        raise ValueError("data.targets=[] names no column")
    columns.require(named, "targets")
    columns.require(others, "owner" if owner in others[:1] else "is_test")
    numeric, categorical = _features(columns, numeric, categorical, leave=[*named, *others])
    roles = {"targets": named, "numeric": numeric, "categorical": categorical}
    columns, flags = _complete(columns, roles, owner, is_test, missing)
    found = read_targets(columns, named, task)
    if standardise == "client" and owner is None:
        raise ValueError(
            "data.standardise=client needs data.owner, the column that names the clients; "
            "allowed without it: none, all"
        )
    clients, held_out = split_rows(
        columns, owner, flags, groups=found.groups, test_fraction=test_fraction, seed=seed
    )
    numbers = _stack([columns.numbers(name) for name in numeric], len(held_out))
    if standardise != "none":
        group = clients.owner if clients is not None and standardise == "client" else None
        numbers = standardised(numbers, is_training=~held_out, group=group, names=numeric)
    coded = [columns.codes(name) for name in categorical]
    for name, (codes, texts) in zip(categorical, coded, strict=True):
        warn_of_odd_names(f"data.categorical={name}", texts, codes)
    values = found.values
    if found.task == "regression":
        if standardise_targets:
            values = standardised(values, is_training=~held_out, names=named)
        values = _as_float32(values, "targets", named)
        if not standardise_targets:
            names = [f"data.targets={name}" for name in named]
            refuse_outliers(values, names=names, rows=np.arange(len(values)))
    numbers = _as_float32(numbers, "numeric", numeric)
    rows = np.column_stack([numbers, *(codes for codes, _ in coded)]).astype(np.float32)
    return Examples(
        inputs=torch.from_numpy(rows),
        targets=torch.from_numpy(values),
        num_classes=found.num_outputs,
        is_test=held_out,
        owner=None if clients is None else clients.owner,
        task=found.task,
        categories=tuple(len(names) for _, names in coded),
        input_names=(*numeric, *map(_with_categories, categorical, coded)),
        class_names=found.names,
        client_names=() if clients is None else clients.names,
    )


def _with_categories(name: str, coded: tuple[np.ndarray, Sequence[object]]) -> str:
    return f"{name}: {', '.join(map(str, coded[1]))}"


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


def _complete(
    columns: Columns,
    roles: dict[str, list[str]],
    owner: str | None,
    is_test: str | None,
    missing: Literal["error", "drop", "category"],
) -> tuple[Columns, np.ndarray | None]:
    """The complete rows, and which are for testing; incomplete ones are refused or left out."""
    if missing == "category":
        roles = {option: names for option, names in roles.items() if option != "categorical"}
    lacking = {
        f"data.{option}={name}": columns.missing(name)
        for option, names in roles.items()
        for name in names
    }
    held_out = None
    if is_test is not None:
        lacking[f"data.is_test={is_test}"] = columns.missing(is_test)
        held_out = marked_for_testing(f"data.is_test={is_test}", columns.as_names(is_test))
    if owner is not None:
        lacking[f"data.owner={owner}"] = unowned(columns.as_names(owner), held_out)
    kept = complete_rows(lacking, missing, is_test=held_out)
    return columns.kept(kept), None if held_out is None else held_out[kept]


def _stack(columns: list[np.ndarray], num_rows: int) -> np.ndarray:
    return np.stack(columns, axis=1) if columns else np.zeros((num_rows, 0))


def _as_float32(values: np.ndarray, option: str, names: list[str]) -> np.ndarray:
    """Columns of numbers as float32 [N, D]; names the column of a number that is too large."""
    columns = zip(names, values.T, strict=True)
    found = [as_float32(f"data.{option}={name}", own) for name, own in columns]
    return _stack(found, len(values))
