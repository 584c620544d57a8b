"""Reads one argument with a Python program's examples, in any form, and targets of any task."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, StackDataset, TensorDataset

from flfast.api.own_frame import is_frame
from flfast.config.errors import ConfigError, OneRankError
from flfast.datamodules.examples import check_num_classes
from flfast.datamodules.mapped import shared_tensor
from flfast.datamodules.missing import as_objects, missing_rows, refuse_missing
from flfast.datamodules.number_range import regression_targets, unusable_number
from flfast.setup.user_code import described, named
from flfast.tasks.names import TaskName
from flfast.tasks.task_type import IGNORED

ALLOWED = (
    "allowed: (inputs, targets) or (inputs, targets, clients) of tensors or arrays, a map-style "
    "Dataset of such pairs or triples, a list or dict of Datasets, one for each client, a pandas "
    "DataFrame with target=COLUMN, an Examples of flfast, or a function that returns one"
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
        samples: the N examples by index, as they were given.
    """

    inputs: Tensor | Dataset[Tensor]
    targets: Tensor
    clients: np.ndarray | None
    samples: Any


def is_dataset(data: object) -> bool:
    """Whether an object has items by index, as a map-style Dataset has."""
    has_items = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return has_items and not isinstance(data, (type, str, Mapping))


def read_pairs(key: str, data: Any, task: TaskName, target: str) -> OwnPart:
    """The examples of an argument in any form but that of a DataFrame.

    `target` is what errors call the targets of arrays.

    Raises:
        ConfigError: if it has none of them; names the index of a wrong item.
        ValueError: if values are missing.
    """
    check_plain(f"{key}=", data)
    if getattr(type(data), "__getitem__", None) is TensorDataset.__getitem__:
        return read_pairs(key, data.tensors, task, target)._replace(samples=data)
    if isinstance(data, (tuple, list)) and len(data) in {2, 3}:
        return _read_arrays(key, task, target, *data)
    if is_dataset(data) and not is_frame(data):
        return _read_items(key, data, task)
    raise ConfigError(f"{key}= is of type {type(data).__name__}; {ALLOWED}")


def _read_arrays(
    key: str, task: TaskName, target: str, inputs: Any, targets: Any, clients: Any = None
) -> OwnPart:
    """The examples of arrays [N, ...]."""
    if isinstance(inputs, np.ma.MaskedArray):
        refuse_missing(f"{key}=: inputs", missing_rows(inputs))
    if not isinstance(targets, Tensor) and (given := _array(targets)).ndim:
        refuse_missing(f"{key}=: {target}", missing_rows(given))
    tensor = _tensor(f"{key}=: inputs", inputs)
    found = read_targets(f"{key}=: {target}", targets, task)
    if tensor.ndim < 2:
        raise ConfigError(f"{key}=: inputs of shape {list(tensor.shape)}; allowed: [N, ...]")
    if isinstance(clients, (list, tuple)):
        clients = as_objects(clients)  # numpy would make texts of numbers beside them
    names = None if clients is None else _array(clients)
    if names is not None and not names.ndim:
        raise ConfigError(
            f"{key}=: clients of type {type(clients).__name__}; allowed: one name an input"
        )
    for name, part in {
        target: found if task == "classification" else found.flatten(1)[:, 0],
        "clients": names,
    }.items():
        if part is not None and tuple(part.shape) != (len(tensor),):
            raise ConfigError(
                f"{key}=: {name} of shape {list(part.shape)} for {len(tensor)} inputs; "
                f"allowed: [{len(tensor)}]"
            )
    return OwnPart(tensor, found, names, StackDataset(inputs, targets))


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


def _read_items(key: str, data: Any, task: TaskName) -> OwnPart:
    """The examples of a map-style Dataset of (input, target) or (input, target, client).

    Targets and clients are read in one pass; inputs are read again when they are needed.
    """
    labels, clients = [], []
    shape = None
    with named(key, ": its length"):
        num = len(data)
    for index in range(num):
        item = _item(key, data, index)
        shape = tuple(item[0].shape) if shape is None else shape
        if tuple(item[0].shape) != shape:
            raise ConfigError(
                f"{key}=: item {index} has shape {list(item[0].shape)}, item 0 {list(shape)}; "
                f"allowed: one shape"
            )
        label = np.asarray(item[1])
        if task == "classification" and label.size != 1:
            raise ConfigError(
                f"{key}=: the target of item {index} has shape {list(label.shape)}; allowed: "
                f"one integer"
            )
        labels.append(label.reshape(()) if label.size == 1 else label)
        clients += list(item[2:])
    if not labels:
        raise ConfigError(f"{key}=: there is no example")
    if clients and len(clients) != len(labels):
        raise ConfigError(f"{key}=: {len(clients)} of {len(labels)} items have a client")
    shapes = {label.shape for label in labels}
    if len(shapes) > 1:
        raise ConfigError(f"{key}=: targets have the shapes {sorted(shapes)}; allowed: one shape")
    names = as_objects([np.asarray(name)[()] for name in clients]) if clients else None
    targets = read_targets(f"{key}=: targets", np.stack(labels), task)
    return OwnPart(_Inputs(key, data), targets, names, data)


def _item(key: str, data: Any, index: int) -> Any:
    with named(key, f": item {index}"):
        item = data[index]
    if not isinstance(item, (tuple, list)) or len(item) not in {2, 3}:
        raise ConfigError(
            f"{key}=: item {index} is a {type(item).__name__}; allowed: (input, target) or "
            f"(input, target, client)"
        )
    if not isinstance(item[0], (Tensor, np.ndarray)):
        raise ConfigError(
            f"{key}=: the input of item {index} is a {type(item[0]).__name__}; allowed: a tensor, "
            f"such as that of torchvision's ToTensor"
        )
    where = f"{key}=: the input of item {index}"
    if index == 0:  # the others have its type and shape, or batches cannot be stacked
        check_plain(where, item[0])
    if reason := unusable_number(item[0]):
        raise ConfigError(f"{where}: {reason}; allowed: finite numbers")
    return item


class _Inputs(Dataset[Tensor]):
    """The inputs of a `Dataset` of (input, target, ...)."""

    def __init__(self, key: str, data: Any) -> None:
        self._key, self._data = key, data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Tensor:
        try:
            return torch.as_tensor(self._data[int(index)][0])
        except Exception as error:
            text = described(error).splitlines()[0]
            raise OneRankError(f"{self._key}=: item {index}: {text}") from error


def check_plain(where: str, values: object) -> None:
    """Refuse what is sparse, as of torch or scipy, and a tensor that is nested or without values.

    Raises:
        ConfigError: naming what it is, and what is allowed.
    """
    found = ""
    if type(values).__module__.startswith("scipy.sparse"):
        found = f"a sparse {type(values).__name__}"
    elif isinstance(values, Tensor) and values.layout != torch.strided:
        found = str(values.layout)
    elif isinstance(values, Tensor) and (values.is_nested or values.is_meta):
        found = "a nested tensor" if values.is_nested else "on the device meta"
    if found:
        raise ConfigError(f"{where}: {found}; allowed: dense values of one shape, in memory")


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
        ValueError: as `regression_targets`.
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
