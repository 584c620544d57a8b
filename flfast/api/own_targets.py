"""Targets of a Python program's data, by task."""

from collections.abc import Iterable, Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from flfast.api.own_dataset import check_plain
from flfast.config.errors import ConfigError, refused
from flfast.datamodules.examples import check_num_classes
from flfast.datamodules.number_range import regression_targets
from flfast.tasks.names import TaskName
from flfast.tasks.task_type import IGNORED

_NUM_DIMS = {"classification": 1, "regression": 2, "multilabel": 2, "language": 2}
_ALLOWED = {
    "classification": "integers from 0; numbers are learned with task=regression",
    "regression": "numbers [N] or [N, C]",
    "multilabel": "0 or 1, [N, C]",
    "language": "tokens, integers [N, T]",
}


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
    allowed = _ALLOWED[task]
    check_plain(where, values)
    try:
        found = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError):
        first = next(iter(values), None) if isinstance(values, Iterable) else values
        kind = type(first).__name__
        hint = ", such as those of pandas.factorize" if task == "classification" else ""
        raise ConfigError(f"{where}: {kind}; allowed: {allowed.partition(';')[0]}{hint}") from None
    integers = task in {"classification", "language"}
    if found.is_complex() or (integers and found.is_floating_point()):
        raise ConfigError(f"{where}: {found.dtype} numbers; allowed: {allowed}")
    found = found.detach().cpu()
    if task == "regression" and found.ndim == 1:
        found = found.unsqueeze(1)
    if found.ndim != _NUM_DIMS[task] and task != "classification":
        raise ConfigError(f"{where} of shape {list(found.shape)}; allowed: {allowed}")
    if integers:
        return found.to(torch.int64)
    if task != "regression":
        return found.float()
    with refused():
        return torch.from_numpy(regression_targets(where, found.numpy()))


def num_outputs(task: TaskName, inputs: Tensor | Dataset[Tensor], targets: Tensor) -> int:
    """C of the data; see `Examples`."""
    if task in {"regression", "multilabel"}:
        return int(targets.shape[1])
    largest = int(targets.max()) if len(targets) else -1
    if task == "classification":
        return check_num_classes(largest, len(targets), "data=: targets")
    if task == "language":
        read = inputs if isinstance(inputs, Tensor) else targets
        largest = max(largest, int(read.max()), IGNORED)
    return largest + 1
