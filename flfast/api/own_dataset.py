"""Reads a map-style Dataset of a Python program, and checks tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from flfast.config.errors import ConfigError, OneRankError
from flfast.datamodules.missing import as_objects
from flfast.datamodules.number_range import unusable_number
from flfast.setup.user_code import described


def is_dataset(data: object) -> bool:
    """Whether an object has items by index, as a map-style Dataset has."""
    has_items = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return has_items and not isinstance(data, (type, str, Mapping))


def read_dataset(
    key: str, data: Any, *, one_integer: bool
) -> tuple[Dataset[Tensor], np.ndarray, np.ndarray | None]:
    """Inputs of a map-style Dataset, its targets [N, ...], and names of clients [N], if any.

    Targets and clients are read in one pass; inputs are read again when they are needed.

    Raises:
        ConfigError: naming the argument, the index of the item and the problem.
    """
    labels, clients = [], []
    shape = None
    for index in range(_length(key, data)):
        item = _item(key, data, index)
        shape = tuple(item[0].shape) if shape is None else shape
        if tuple(item[0].shape) != shape:
            raise ConfigError(
                f"{key}=: item {index} has shape {list(item[0].shape)}, item 0 {list(shape)}; "
                f"allowed: one shape"
            )
        label = np.asarray(item[1])
        if one_integer and label.size != 1:
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
    named = as_objects([np.asarray(name)[()] for name in clients]) if clients else None
    return _Inputs(key, data), np.stack(labels), named


def _length(key: str, data: Any) -> int:
    try:
        return len(data)
    except Exception as error:
        raise ConfigError(f"{key}=: its length: {described(error)}") from error


def _item(key: str, data: Any, index: int) -> Any:
    try:
        item = data[index]
    except Exception as error:
        raise ConfigError(f"{key}=: item {index}: {described(error)}") from error
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
