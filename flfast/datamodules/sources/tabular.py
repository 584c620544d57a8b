"""Tables in CSV or Parquet files, with named columns."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.held_out import held_out_test
from flfast.datamodules.sources.natural_clients import number_clients
from flfast.datamodules.sources.standardising import standardised
from flfast.datamodules.sources.table_files import Columns, read_table
from flfast.datamodules.sources.table_targets import read_targets
from flfast.datamodules.transforms import BatchTransform
from flfast.options import Portion
from flfast.tasks.task_type import TaskName


def table(  # noqa: PLR0913 - one parameter an option
    *,
    path: str,
    targets: str | list[str],
    numeric: list[str] | None,
    categorical: list[str] | None,
    owner: str | None,
    is_test: str | None,
    test_fraction: Portion,
    standardise: Literal["none", "all", "client"],
    standardise_targets: bool,
    task: TaskName | None,
    seed: int,
) -> Examples:
    """Rows as inputs float32 [N, numeric + categorical columns], in the order of the file.

    Numeric columns come first. The others hold the numbers of categories, from 0 in sorted order;
    `Examples.categories` says how many each column has.

    Args:
        path: of a `.csv`, `.csv.gz` or `.parquet` file.
        targets: one column, or several of numbers.
        numeric: columns of numbers; None for all that are not named elsewhere.
        categorical: columns of categories; None for all of text that are not named elsewhere.
        owner: column that names the client of each row; None if there are no clients.
        is_test: column that says which rows are for testing: true and false, 1 and 0, or `test`
            and `train`; None draws them.
        test_fraction: share of the rows for testing without `is_test`, of each client, or else of
            each class; 0 for none.
        standardise: numeric columns by mean and standard deviation over the rows that are not for
            testing: over those of all clients, which a federation would compute by one secure
            sum, or over those of each client, which nobody else learns.
        standardise_targets: the targets of a regression, too, by those of all clients.
        task: of the run; None is `regression` for targets of the type float, `classification`
            for text and for integers of at most 100 different values.
        seed: the run's seed, which determines a drawn test set.

    Raises:
        ValueError: if the file cannot be read, or columns are missing or do not fit.
    """
    columns = Columns(read_table(path), path)
    named = [targets] if isinstance(targets, str) else list(targets)
    others = [name for name in (owner, is_test) if name is not None]
    columns.require(named, "targets")
    columns.require(others, "owner" if owner in others[:1] else "is_test")
    numeric, categorical = _features(columns, numeric, categorical, leave=[*named, *others])
    found = read_targets(columns, named, task)
    clients = None if owner is None else columns.codes(owner)[0]
    if standardise == "client" and clients is None:
        raise ValueError(
            "data.standardise=client needs data.owner, the column that names the clients; "
            "allowed without it: none, all"
        )
    held_out = _test_rows(
        columns,
        is_test,
        groups=found.groups if clients is None else clients,
        test_fraction=test_fraction,
        seed=seed,
    )
    is_training = np.ones(len(found.values), bool) if held_out is None else ~held_out
    if clients is not None:
        clients = number_clients(clients, held_out)
    numbers = _stack([columns.numbers(name) for name in numeric], len(is_training))
    if standardise != "none":
        group = clients if standardise == "client" else None
        numbers = standardised(numbers, is_training=is_training, group=group)
    coded = [columns.codes(name) for name in categorical]
    values = found.values
    if found.task == "regression":
        if standardise_targets:
            values = standardised(values, is_training=is_training)
        values = values.astype(np.float32)
    return Examples(
        inputs=_inputs(numbers, _stack([codes for codes, _ in coded], len(is_training))),
        targets=torch.from_numpy(values),
        num_classes=found.num_outputs,
        input_shape=(len(numeric) + len(categorical),),
        transform=BatchTransform(),
        is_test=held_out,
        owner=clients,
        task=found.task,
        categories=tuple(len(names) for _, names in coded),
        class_names=found.names,
    )


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
    free = [name for name in columns.names if name not in used]
    if numeric is None:
        numeric = [name for name in free if columns.kind(name) != "text"]
    if categorical is None:
        categorical = [name for name in free if columns.kind(name) == "text"]
    if not numeric and not categorical:
        raise ValueError("data.numeric and data.categorical leave no column as input")
    return list(numeric), list(categorical)


def _test_rows(
    columns: Columns, name: str | None, *, groups: np.ndarray, test_fraction: float, seed: int
) -> np.ndarray | None:
    """Bool [N]; None if there is no test set."""
    if name is None:
        return held_out_test(groups, test_fraction=test_fraction, seed=seed)
    codes, values = columns.codes(name)
    words = [str(value).lower() for value in values]
    if set(words) - {"true", "false", "1", "0", "test", "train"}:
        raise ValueError(
            f"data.is_test={name}: the column holds {values[:4]}; allowed: true and false, 1 and "
            "0, or test and train"
        )
    is_test: np.ndarray = np.isin(codes, [i for i, w in enumerate(words) if w in "true 1 test"])
    if is_test.all():
        raise ValueError(f"data.is_test={name}: all rows are for testing")
    return is_test if is_test.any() else None


def _stack(columns: list[np.ndarray], num_rows: int) -> np.ndarray:
    return np.stack(columns, axis=1) if columns else np.zeros((num_rows, 0))


def _inputs(numbers: np.ndarray, codes: np.ndarray) -> Tensor:
    return torch.from_numpy(np.concatenate([numbers, codes], axis=1).astype(np.float32))
