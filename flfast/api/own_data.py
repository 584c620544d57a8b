"""Makes examples of a Python program's data: tensors, arrays, Datasets, DataFrames."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from lightning.pytorch.core.hooks import DataHooks
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, default_collate

from flfast.api.own_dataset import is_dataset
from flfast.api.own_frame import Coded, coded_text, is_frame, refuse_missing_rows
from flfast.api.own_parts import ALLOWED, OwnPart, PartReader, check_names, num_outputs
from flfast.config.errors import ConfigError, refused
from flfast.datamodules.examples import Examples
from flfast.datamodules.missing import as_objects, missing_owners
from flfast.datamodules.sources.table_files import index_columns
from flfast.datamodules.transforms import BatchTransform
from flfast.datamodules.value_names import Clients, number_clients
from flfast.setup.data_modules import load, read_samples
from flfast.setup.user_code import named
from flfast.tasks.names import TaskName

log = logging.getLogger(__name__)


def read_data(
    data: Any,
    test_data: Any,
    *,
    target: str | None,
    client: Any,
    labels: Any = None,
    task: TaskName = "classification",
) -> Examples | Callable[..., Examples] | None:
    """The examples of `data`, followed by those of `test_data`; None without data.

    Raises:
        ConfigError: naming the argument, the problem, and what is allowed.
    """
    names = {"test_data": test_data, "target": target, "client": client, "labels": labels}
    given = [name for name, value in names.items() if value is not None]
    if data is None:
        if given:
            raise ConfigError(f"{given[0]}= needs data=; {ALLOWED}")
        return None
    fitting = _arguments(data, task)
    if odd := [name for name in given if name not in fitting]:
        allowed = (
            ", ".join(f"{name}=" for name in fitting) or "none: an Examples names its own test set"
        )
        raise ConfigError(
            f"{odd[0]}= with data= of type {type(data).__name__}; allowed: {allowed}"
        )
    if not fitting:
        return data
    with refused(), named("data", type(data).__name__):
        if "labels" in fitting:
            return read_samples(data, test_data, client, labels)
        if isinstance(data, DataHooks):
            return _read_module(data, client, task)
    return _read_pairs(data, test_data, target, client, task)


def _arguments(data: Any, task: TaskName) -> tuple[str, ...]:
    """Names of further arguments about data of this type, for a model of this task."""
    is_own = task == "module" and not is_frame(data)
    if isinstance(data, DataHooks):
        return ("client", "labels") if is_own else ("client",)
    if isinstance(data, Examples) or (callable(data) and not is_dataset(data)):
        return ()
    return ("test_data", "client", "labels") if is_own else ("test_data", "target", "client")


def _read_module(module: Any, client: Any, task: TaskName) -> Examples:
    """The pairs (input, target) of a DataModule, for a model that is no LightningModule."""
    train, test, val, batch_size, clients = load("data=", module)
    if train.collate is not default_collate or clients is not None:
        raise ConfigError("data= has a collate_fn or clients; allowed: model= a LightningModule")
    if val is not None:
        log.warning("data=: only a LightningModule uses val_dataloader; split.val is used")
    found = _read_pairs(train.dataset, test and test.dataset, None, client, task)
    return replace(found, batch_size=batch_size)


def _read_pairs(
    data: Any, test_data: Any, target: str | None, client: str | None, task: TaskName
) -> Examples:
    """The examples of inputs and targets; a module reads targets of any kind."""
    if task == "module":
        kind = getattr(data[target].dtype, "kind", "O") if target in data else "O"
        task = "regression" if kind == "f" else "classification"
    coded = Coded(data, test_data)
    if is_frame(data):
        check_names("data", data)
        data = data.drop(columns=index_columns("data=", data.columns, {target, client}))
        tests = _with_columns_of(data, test_data, client)
        coded = coded_text(data, tests, target=target, client=client, task=task)
    reader = PartReader(target, client, task)
    train = reader.read("data", coded.data)
    test = None if test_data is None else reader.read("test_data", coded.test_data)
    try:
        return _examples(train, test, task, coded)
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"data=: {error}") from None


def _with_columns_of(data: Any, test_data: Any, client: str | None) -> Any:
    """A test set with the columns in the order of `data`; it may lack those of clients."""
    if not is_frame(test_data):
        return test_data
    test_data = test_data.drop(columns=index_columns("test_data=", test_data, data.columns))
    names = [name for name in data.columns if name in test_data.columns or name != client]
    if set(names) != set(test_data.columns):
        odd = sorted(map(str, set(names) ^ set(test_data.columns)))
        raise ConfigError(f"test_data=: column {odd[0]} is in one DataFrame only; allowed: both")
    return test_data[names]


def _examples(train: OwnPart, test: OwnPart | None, task: TaskName, coded: Coded) -> Examples:
    shape = _shape(train)
    if test is not None and _shape(test) != shape:
        raise ConfigError(
            f"test_data=: inputs of shape {list(_shape(test))}; allowed: {list(shape)}, as data="
        )
    kinds = [part.inputs[0].dtype for part in (train, test) if part is not None]
    if len(set(kinds)) > 1:
        raise ConfigError(
            f"test_data=: inputs of type {kinds[1]}; allowed: {kinds[0]}, as data=, since uint8 "
            f"is scaled to [0, 1]"
        )
    parts = [train] if test is None else [train, test]
    targets, inputs = torch.cat([part.targets for part in parts]), [part.inputs for part in parts]
    joined, clients = _joined(inputs), _clients(train, test)
    return Examples(
        inputs=joined,
        targets=targets,
        num_classes=num_outputs(task, joined, targets),
        input_shape=shape,
        transform=BatchTransform(),
        is_test=None if test is None else np.arange(len(targets)) >= len(train.targets),
        owner=None if clients is None else clients.owner,
        client_names=() if clients is None else clients.names,
        task=task,
        categories=coded.categories,
        class_names=coded.classes,
    )


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


def _clients(train: OwnPart, test: OwnPart | None) -> Clients | None:
    """The client of each example, if any names one; test examples may name none."""
    if train.clients is None:
        if test is not None and test.clients is not None:
            raise ConfigError("test_data= names clients, and data= does not; allowed: both do")
        return None
    where = "data=: the clients"
    refuse_missing_rows(where, missing_owners(train.clients))
    if test is None:
        return number_clients(train.clients, None, where=where)
    own, central = as_objects(np.ma.getdata(train.clients)), np.full(len(test.targets), None)
    is_test = np.arange(len(own) + len(central)) >= len(own)
    if test.clients is None or missing_owners(test.clients).all():
        return number_clients(np.concatenate([own, central]), is_test, where=where)
    refuse_missing_rows("test_data=: the clients", missing_owners(test.clients))
    tests = as_objects(np.ma.getdata(test.clients))
    found = number_clients(np.concatenate([own, tests]), is_test, where=where)
    unknown = found.owner[is_test] < 0
    if unknown.any():
        raise ConfigError(f"test_data=: client {tests[unknown][0]} has no examples in data=")
    return found
