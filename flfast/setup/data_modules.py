"""A user's own data as those of a LightningModule: DataModules, Datasets, and parts of samples."""

import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
)

from flfast.datamodules.examples import Examples
from flfast.datamodules.own_samples import own_examples, values_of
from flfast.datamodules.samples import SamplePart
from flfast.state.environment import integer

log = logging.getLogger(__name__)

_SAMPLERS = (SequentialSampler, RandomSampler, BatchSampler)
_ALLOWED = (
    "allowed: a LightningDataModule, a DataLoader, a map-style Dataset, a dict or tuple of "
    "equally long tensors or arrays, or a list or dict of Datasets, one for each client"
)


Loaded = tuple[SamplePart, SamplePart | None, SamplePart | None, int, Any]
"""For training, tests and validation; the batch size of training; and clients, if there are."""


def load(where: str, module: Any) -> Loaded:
    """Prepare and set up a DataModule, and read its loaders; `where` begins errors.

    Raises:
        ValueError: if clients could not draw the batches that its loaders give.
    """
    if isinstance(module, nn.Module):  # a model with loaders, which the run sets up itself
        module = deepcopy(module)
    if not integer("LOCAL_RANK", 0):
        module.prepare_data()
    for stage in ("fit", "test"):
        module.setup(stage)
    train, test, val = (_part(where, module, role) for role in ("train", "test", "val"))
    if train is None:
        raise ValueError(f"{where}: gives no train_dataloader; allowed: one")
    (part, batch_size), clients = train, getattr(module, "clients", None)
    if isinstance(clients, Mapping):
        dataset, clients = _of_clients(f"{where}: clients", clients)
        part = part._replace(dataset=dataset)
    return part, test and test[0], val and val[0], batch_size, clients


def module_examples(where: str, module: Any, client: Any = None, **options: Any) -> Examples:
    """The examples of a DataModule, in its own batches; `options` as of `own_examples`.

    Raises:
        ValueError: as `load` and `own_examples`.
    """
    train, test, val, batch_size, clients = load(where, module)
    client = clients if client is None else client
    found = own_examples(train, test, val, client=client, **options)
    own = None if isinstance(module, nn.Module) else module
    return replace(found, datamodule=own, batch_size=batch_size)


def read_samples(data: Any, test_data: Any, client: Any, labels: Any) -> Examples:
    """The samples of two arguments of `flfast.run`, in any form but that of a DataFrame.

    Raises:
        ValueError: naming the argument, the problem, and what is allowed.
    """
    if isinstance(data, DataLoader):
        data = _of_loaders(data, test_data)
    if isinstance(data, DataHooks):
        return module_examples("data=", data, client, labels=labels)
    train, clients = _dataset("data=", data)
    if clients is not None and client is not None:
        raise ValueError("client= with Datasets of clients as data=; allowed: one of the two")
    test, tests = (None, None) if test_data is None else _dataset("test_data=", test_data)
    if test is not None and tests is None and (isinstance(client, (str, int)) or callable(client)):
        try:  # test samples may not have what training samples have
            tests = client if len(values_of("client", client, Subset(test, [0]))) else None
        except ValueError:
            tests = None
    client, test = client if clients is None else clients, test and SamplePart(test)
    return own_examples(SamplePart(train), test, client=client, test_client=tests, labels=labels)


def _of_loaders(train: DataLoader[Any], test: Any) -> L.LightningDataModule:
    """A DataModule of what `Trainer.fit` and `Trainer.test` get."""
    found: Any = L.LightningDataModule()
    found.train_dataloader = lambda: train
    found.test_dataloader = lambda: test
    return found


def _dataset(where: str, data: Any) -> tuple[Any, list[Any] | None]:
    """A map-style Dataset, and the client of each sample if it has a part for each client."""
    named = data if isinstance(data, Mapping) else {}
    if isinstance(data, (list, tuple)) and all(isinstance(part, Dataset) for part in data):
        named = dict(enumerate(data))
    arrays_or_lists = [p for p in named.values() if hasattr(p, "ndim") or isinstance(p, Sequence)]
    if named and not arrays_or_lists:
        if {"train", "test"} <= named.keys():
            raise ValueError(f"{where}: train and test are no clients; allowed: test_data=")
        return _of_clients(where, named)
    arrays = isinstance(data, list) and all(isinstance(p, (Tensor, np.ndarray)) for p in data)
    if arrays or isinstance(data, (Mapping, tuple)):
        try:
            return StackDataset(**data) if isinstance(data, Mapping) else StackDataset(*data), None
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}; {_ALLOWED}") from None
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise ValueError(f"{where} is a {type(data).__name__}; {_ALLOWED}")
    return data, None


def _of_clients(where: str, clients: Mapping[Any, Any]) -> tuple[Any, list[Any]]:
    """The Datasets of clients, one after the other, and the name of each sample's client."""
    empty = [name for name, part in clients.items() if not len(part)]
    if empty:
        raise ValueError(f"{where}: client {empty[0]} has no sample; allowed: one or more")
    names = [name for name, part in clients.items() for _ in range(len(part))]
    return ConcatDataset(clients.values()), names


def _part(where: str, module: Any, role: str) -> tuple[SamplePart, int] | None:
    """The part and the batch size of a loader that draws each sample of its Dataset once."""
    name = f"{role}_dataloader"
    if not is_overridden(name, module, parent=DataHooks):
        return None
    where, found = f"{where}: {name}", getattr(module, name)()
    found = found.iterables if isinstance(found, CombinedLoader) else found
    if isinstance(found, (Mapping, list, tuple)):
        found = _first(where, found, alone=role == "train")
    if found is None:
        return None
    if not isinstance(found, DataLoader) or type(found).__iter__ is not DataLoader.__iter__:
        raise ValueError(f"{where} gives a {type(found).__name__}; allowed: torch's DataLoader")
    dataset: Any = found.dataset
    if isinstance(dataset, IterableDataset):
        kind = type(dataset).__name__
        raise ValueError(f"{where}: {kind} is an IterableDataset; allowed: one with a length")
    sampler: Any = found.sampler
    odd = [s for s in (sampler, found.batch_sampler) if type(s) not in _SAMPLERS]
    if odd or getattr(sampler, "replacement", False) or len(sampler) != len(dataset):
        raise ValueError(
            f"{where} draws by {type([*odd, sampler][0]).__name__}, and clients draw each sample "
            f"once; allowed: shuffle=True or False, and weights in the loss"
        )
    return SamplePart(dataset, found.collate_fn), found.batch_size or 1


def _first(where: str, loaders: Any, *, alone: bool) -> Any:
    """The first of several loaders, if that may be."""
    if alone:
        raise ValueError(f"{where} gives {len(loaders)} loaders; allowed: one DataLoader")
    first, *others = loaders if isinstance(loaders, Mapping) else range(len(loaders))
    if others:
        log.warning("%s: of its loaders, %s is used, and %s not", where, first, others)
    return loaders[first]
