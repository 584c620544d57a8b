"""Makes examples of a Python program's data: tensors, arrays, Datasets, DataFrames."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch.core.hooks import DataHooks
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, default_collate

from flfast.api.arguments import Arguments
from flfast.api.own_frame import is_frame, read_frames
from flfast.api.own_parts import ALLOWED, OwnPart, is_dataset, num_outputs, read_pairs
from flfast.config.errors import ConfigError, refused
from flfast.datamodules.examples import Examples
from flfast.datamodules.own_samples import (
    ClientNames,
    OwnData,
    client_names,
    own_examples,
    padded_labels,
    roles,
    sample_labels,
)
from flfast.datamodules.preprocessing import Preprocessing
from flfast.datamodules.samples import SamplePart
from flfast.datamodules.transforms import BatchTransform
from flfast.setup.data_modules import read_forms
from flfast.setup.user_code import named
from flfast.tasks.names import TaskName

log = logging.getLogger(__name__)


def read_data(
    arguments: Arguments,
    task: TaskName = "classification",
    kept: Preprocessing | None = None,
) -> Examples | Callable[..., Examples] | None:
    """The examples of `data`, followed by those of `test_data`; None without data.

    With `kept`, of a trained model, DataFrames become what they were for that model.

    Raises:
        ConfigError: naming the argument, the problem, and what is allowed.
    """
    data, test_data, _, client, labels, *_ = arguments
    names = ("test_data", "target", "client", "labels")
    given = [name for name in names if getattr(arguments, name) is not None]
    if data is None:
        if given:
            raise ConfigError(f"{given[0]}= needs data=; {ALLOWED}")
        return None
    fitting = _arguments(data)
    if odd := [name for name in given if name not in fitting]:
        allowed = (
            ", ".join(f"{name}=" for name in fitting) or "none: an Examples names its own test set"
        )
        column = "; target= names a column of a DataFrame" if odd[0] == "target" else ""
        raise ConfigError(
            f"{odd[0]}= with data= of type {type(data).__name__}; allowed: {allowed}{column}"
        )
    if not fitting:
        return data
    with refused(), named("data", type(data).__name__):
        if is_frame(data):
            return _of_frames(arguments, task, kept)
        found = read_forms(data, test_data, client, samples=task == "module")
        if task == "module":
            return own_examples(found, labels)
        return _of_pairs(found, labels, task)


def _arguments(data: Any) -> tuple[str, ...]:
    """Names of further arguments about data of this type."""
    if is_frame(data):
        return "test_data", "target", "client"
    if isinstance(data, DataHooks):
        return "client", "labels"
    if isinstance(data, Examples) or (callable(data) and not is_dataset(data)):
        return ()
    return "test_data", "client", "labels"


def _of_frames(arguments: Arguments, task: TaskName, kept: Preprocessing | None) -> Examples:
    """The examples of DataFrames; a module reads targets of any kind."""
    data, test_data, target, client, *_ = arguments
    if task == "module":
        kind = getattr(data[target].dtype, "kind", "O") if target in data else "O"
        task = "regression" if kind == "f" else "classification"
    found = read_frames(data, test_data, target=target, client=client, task=task, kept=kept)
    train, *tests = map(SamplePart, found.parts)
    categories = tuple(map(len, found.columns.categories.values()))
    about = {"categories": categories, "class_names": found.classes, "columns": found.columns}
    given = OwnData(train, tests[0] if tests else None)
    return _of_pairs(given, None, task, f"column {target}", **about)


def _of_pairs(
    data: OwnData, labels: Any, task: TaskName, target: str = "targets", **about: Any
) -> Examples:
    """The examples of pairs (input, target), for a model that is no LightningModule."""
    given = {"data": data.train} | ({} if data.test is None else {"test_data": data.test})
    if any(part.collate is not default_collate for part in given.values()):
        raise ConfigError("data= has a collate_fn; allowed: model= a LightningModule")
    if data.val is not None:
        log.warning("data=: only a LightningModule uses val_dataloader; split.val is used")
    parts = [read_pairs(key, part.dataset, task, target) for key, part in given.items()]
    clients = ClientNames("data=: the clients", *(part.clients for part in parts))
    train, *tests = (SamplePart(part.samples) for part in parts)
    if data.clients is not None:
        if any(part.clients is not None for part in parts):
            raise ConfigError("data= names clients twice, once in its samples; allowed: once")
        samples = data._replace(train=train, test=tests[0] if tests else None)
        clients = client_names("client", samples)
    sizes = [*(len(part.targets) for part in parts), 0, 0][:3]
    if labels is not None:
        found, _ = sample_labels("labels", labels, train.dataset)
        about["labels"] = padded_labels(found, sum(sizes))
    about |= roles(sizes, clients) | {"batch_size": data.batch_size}
    return _examples(parts, task, **about)


def _examples(parts: Sequence[OwnPart], task: TaskName, **about: Any) -> Examples:
    """The examples of parts for training, and for tests if there is a second one."""
    shapes, kinds = zip(*((_shape(part), part.inputs[0].dtype) for part in parts), strict=True)
    if shapes[0] != shapes[-1]:
        raise ConfigError(
            f"test_data=: inputs of shape {list(shapes[1])}; allowed: {list(shapes[0])}, as data="
        )
    if kinds[0] != kinds[-1]:
        raise ConfigError(
            f"test_data=: inputs of type {kinds[1]}; allowed: {kinds[0]}, as data=, since uint8 "
            f"is scaled to [0, 1]"
        )
    targets = torch.cat([part.targets for part in parts])
    inputs = _joined([part.inputs for part in parts])
    num = num_outputs(task, inputs, targets)
    try:
        return Examples(inputs, targets, num, shapes[0], BatchTransform(), task=task, **about)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"data=: {error}") from None


def _shape(part: OwnPart) -> tuple[int, ...]:
    if not len(part.targets):
        raise ConfigError("data=: there is no example")
    shape = tuple(part.inputs[0].shape)
    if not shape or 0 in shape:
        raise ConfigError(f"data=: an input has shape {list(shape)}; allowed: one number or more")
    return shape


def _joined(inputs: Sequence[Tensor | Dataset[Tensor]]) -> Tensor | Dataset[Tensor]:
    if len(inputs) == 1:
        return inputs[0]
    tensors = [part for part in inputs if isinstance(part, Tensor)]
    if len(tensors) == len(inputs):
        return torch.cat(tensors)
    return ConcatDataset(inputs)  # type: ignore[arg-type]
