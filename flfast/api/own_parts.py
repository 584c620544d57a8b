"""Reads one argument with a Python program's examples, in any form, and targets of any task."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from flfast.api.own_dataset import check_plain, is_dataset, read_dataset
from flfast.api.own_frame import is_frame, refuse_missing_column, refuse_missing_rows
from flfast.config.errors import ConfigError, refused
from flfast.datamodules.examples import check_num_classes
from flfast.datamodules.mapped import shared_tensor
from flfast.datamodules.missing import as_objects, missing_rows
from flfast.datamodules.number_range import as_float32, regression_targets
from flfast.tasks.names import TaskName
from flfast.tasks.task_type import IGNORED

ALLOWED = (
    "allowed: (inputs, targets) or (inputs, targets, clients) of tensors or arrays, a map-style "
    "Dataset of such pairs or triples, a pandas DataFrame with target=COLUMN, an Examples of "
    "flfast, or a function that returns one"
)
"""What an argument may be, for errors."""

_NUM_DIMS = {"classification": 1, "segmentation": 3}  # 2 of all others
_TARGETS = {
    "classification": "integers from 0; numbers are learned with task=regression",
    "regression": "numbers [N] or [N, C]",
    "multilabel": "0 or 1, [N, C]",
    "language": "tokens, integers [N, T]",
    "survival": "time >= 0, and 1 for an event or 0, [N, 2]",
    "segmentation": "classes of pixels, integers [N, H, W]",
}


class OwnPart(NamedTuple):
    """Examples for training, or for testing.

    Attributes:
        inputs: tensor [N, ...], or a `Dataset` of N input tensors.
        targets: targets of the task; see `Examples`.
        clients: name of each example's client, [N]; None if there are none.
    """

    inputs: Tensor | Dataset[Tensor]
    targets: Tensor
    clients: np.ndarray | None


class PartReader(NamedTuple):
    """Reads data in any of the allowed forms, for a task; the columns are those of a DataFrame."""

    target: str | None
    client: str | None
    task: TaskName

    def read(self, key: str, data: Any) -> OwnPart:
        """The examples of an argument.

        Raises:
            ConfigError: if it has none of them.
        """
        if is_frame(data):
            check_names(key, data)
            return self._frame(key, data)
        check_plain(f"{key}=", data)
        if self.target is not None or self.client is not None:
            raise ConfigError(f"target= and client= name columns of a DataFrame, {key}= is none")
        if isinstance(data, TensorDataset):
            data = data.tensors
        if isinstance(data, (tuple, list)) and data and all(isinstance(p, Dataset) for p in data):
            raise ConfigError(
                f"{key}= is a {type(data).__name__} of {len(data)} Datasets; allowed if each is a "
                f"client's: [(x, y, client) for client, part in enumerate(PARTS) for x, y in part]"
                f", and if none is: torch.utils.data.ConcatDataset(PARTS)"
            )
        if isinstance(data, (tuple, list)) and len(data) in {2, 3}:
            return self._arrays(key, *data)
        if is_dataset(data):
            one_integer = self.task == "classification"
            inputs, labels, named = read_dataset(key, data, one_integer=one_integer)
            targets = read_targets(f"{key}=: targets", labels, self.task)
            return OwnPart(inputs, targets, named)
        raise ConfigError(f"{key}= is of type {type(data).__name__}; {ALLOWED}")

    def _arrays(self, key: str, inputs: Any, targets: Any, clients: Any = None) -> OwnPart:
        if isinstance(inputs, np.ma.MaskedArray):
            refuse_missing_rows(f"{key}=: inputs", missing_rows(inputs))
        if not isinstance(targets, Tensor) and (given := _array(targets)).ndim:
            refuse_missing_rows(f"{key}=: targets", missing_rows(given))
        tensor = _tensor(f"{key}=: inputs", inputs)
        found = read_targets(f"{key}=: targets", targets, self.task)
        if tensor.ndim < 2:
            raise ConfigError(f"{key}=: inputs of shape {list(tensor.shape)}; allowed: [N, ...]")
        if isinstance(clients, (list, tuple)):
            clients = as_objects(clients)  # numpy would make texts of numbers beside them
        named = None if clients is None else _array(clients)
        if named is not None and not named.ndim:
            raise ConfigError(
                f"{key}=: clients of type {type(clients).__name__}; allowed: one name an input"
            )
        for name, part in {
            "targets": found if self.task == "classification" else found.flatten(1)[:, 0],
            "clients": named,
        }.items():
            if part is not None and tuple(part.shape) != (len(tensor),):
                raise ConfigError(
                    f"{key}=: {name} of shape {list(part.shape)} for {len(tensor)} inputs; "
                    f"allowed: [{len(tensor)}]"
                )
        return OwnPart(tensor, found, named)

    def _frame(self, key: str, frame: Any) -> OwnPart:
        target, client = self.target, self.client
        columns = list(frame.columns)
        if key == "test_data" and client not in columns:  # a central test set
            client = None
        for name, column in {"target": target, "client": client}.items():
            if (column is None and name == "target") or (
                column is not None and column not in columns
            ):
                shown = ", ".join(map(str, columns))
                raise ConfigError(
                    f"{name}={column} with {key}= a DataFrame; allowed: one of {shown}"
                )
        inputs = frame.drop(columns=[column for column in (target, client) if column is not None])
        for name in inputs.columns:
            kind = inputs[name].dtype
            if getattr(kind, "kind", "O") not in "biuf":
                raise ConfigError(
                    f"{key}=: column {name} has values of type {kind}; allowed: numbers; drop the "
                    f"column or encode it"
                )
            refuse_missing_column(key, name, inputs[name].isna().to_numpy())
            with refused():
                as_float32(f"{key}=: column {name}", inputs[name].to_numpy(dtype=np.float64))
        clients = None if client is None else frame[client].to_numpy()
        try:
            labels = frame[target].to_numpy()
            return self._arrays(key, inputs.to_numpy(dtype=np.float32), labels, clients)
        except ConfigError as error:
            raise ConfigError(str(error).replace("targets", f"column {target}")) from None


def check_names(key: str, frame: Any) -> None:
    """Refuse a DataFrame with two columns of one name.

    Raises:
        ConfigError: naming the column.
    """
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ConfigError(f"{key}=: column {twice} is there twice; allowed: one of each name")


def _array(values: Any) -> np.ndarray:
    """What numpy makes of values, with the mask of a masked array; 0-d if it cannot read them."""
    try:
        found: np.ndarray = np.asanyarray(values.cpu() if isinstance(values, Tensor) else values)
    except (TypeError, ValueError):
        return np.zeros(())
    return found


def _tensor(where: str, values: Any) -> Tensor:
    """Numbers; a memory-mapped array is not copied, and booleans become floats."""
    check_plain(where, values)
    try:
        if isinstance(values, np.memmap):
            found = shared_tensor(values)
        else:
            found = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}; allowed: numbers") from None
    if found.is_complex():
        raise ConfigError(f"{where}: complex numbers; allowed: real numbers")
    found = found.detach().cpu().contiguous()
    return found.float() if found.dtype == torch.bool else found


def chosen_task(overrides: Sequence[str]) -> TaskName:
    """The task that the settings name; classification without one."""
    words = [word.partition("=")[2] for word in overrides if word.startswith("task=")]
    found = words[-1] if words else "auto"
    named: TaskName = "classification"
    return next((name for name in get_args(TaskName) if name == found), named)


def read_targets(where: str, values: Any, task: TaskName) -> Tensor:
    """Targets as `Examples` has them; an error begins with `where`.

    Raises:
        ConfigError: if they are no targets of the task.
    """
    if task == "forecasting":
        raise ConfigError(
            f"{where}: task=forecasting needs windows; allowed: an Examples of flfast"
        )
    allowed = _TARGETS[task]
    check_plain(where, values)
    try:
        found = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError):
        first = next(iter(values), None) if isinstance(values, Iterable) else values
        kind = type(first).__name__
        hint = ", such as those of pandas.factorize" if task == "classification" else ""
        raise ConfigError(f"{where}: {kind}; allowed: {allowed.partition(';')[0]}{hint}") from None
    integers = task in {"classification", "language", "segmentation"}
    if found.is_complex() or (integers and found.is_floating_point()):
        raise ConfigError(f"{where}: {found.dtype} numbers; allowed: {allowed}")
    found = found.detach().cpu()
    if task == "regression" and found.ndim == 1:
        found = found.unsqueeze(1)
    if found.ndim != _NUM_DIMS.get(task, 2) and task != "classification":
        raise ConfigError(f"{where} of shape {list(found.shape)}; allowed: {allowed}")
    if integers:
        return found.to(torch.int64)
    if task != "regression":
        return found.float()
    with refused():
        return torch.from_numpy(regression_targets(where, found.numpy()))


def num_outputs(task: TaskName, inputs: Tensor | Dataset[Tensor], targets: Tensor) -> int:
    """C of the data; see `Examples`."""
    if task == "survival":
        return 1
    if task in {"regression", "multilabel"}:
        return int(targets.shape[1])
    largest = int(targets.max()) if len(targets) else -1
    if task == "classification":
        return check_num_classes(largest, len(targets), "data=: targets")
    if task == "language":
        read = inputs if isinstance(inputs, Tensor) else targets
        largest = max(largest, int(read.max()), IGNORED)
    return max(largest + 1, 2) if task == "segmentation" else largest + 1
