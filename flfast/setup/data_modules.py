"""A user's own data, in any form: DataModules, DataLoaders, Datasets, and parts of samples."""

import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
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
)

from flfast.datamodules.own_samples import OwnData
from flfast.datamodules.samples import SamplePart
from flfast.state.environment import integer

log = logging.getLogger(__name__)

_SAMPLERS = (SequentialSampler, RandomSampler, BatchSampler)
_ALLOWED = (
    "allowed: a LightningDataModule, a DataLoader, a map-style Dataset, a dict or tuple of "
    "equally long tensors or arrays, or a list or dict of Datasets, one for each client"
)


def load(where: str, module: Any, client: Any = None) -> OwnData:
    """Prepare and set up a DataModule, and read its loaders; `where` begins errors.

    Its clients are those that `client` names, else its own, if it has some.

    Raises:
        ValueError: if clients could not draw the batches that its loaders give.
    """
    is_model = isinstance(module, nn.Module)
    if is_model:  # a model with loaders, which the run sets up itself
        module = deepcopy(module)
    if not integer("LOCAL_RANK", 0):
        module.prepare_data()
    for stage in ("fit", "test"):
        module.setup(stage)
    loaders = [_loader(where, module, role) for role in ("train", "test", "val")]
    if loaders[0] is None:
        raise ValueError(f"{where}: gives no train_dataloader; allowed: one")
    train: Any
    train, test, val = (
        one if one is None else SamplePart(one.dataset, one.collate_fn) for one in loaders
    )
    clients = getattr(module, "clients", None)
    if isinstance(clients, Mapping):
        dataset, clients = _of_clients(f"{where}: clients", clients)
        train = train._replace(dataset=dataset)
    clients, own = clients if client is None else client, None if is_model else module
    return OwnData(train, test, val, clients, None, loaders[0].batch_size or 1, own)


def read_forms(data: Any, test_data: Any, client: Any, *, samples: bool) -> OwnData:
    """The Datasets of two arguments of `flfast.run`, in any form but that of a DataFrame.

    `samples` makes a Dataset of tuples and dicts of arrays, too.

    Raises:
        ValueError: naming the argument, the problem, and what is allowed.
    """
    if isinstance(data, DataLoader):
        data = _of_loaders(data, test_data)
    if isinstance(data, DataHooks):
        return load("data=", data, client)
    train, clients = _by_client("data=", data, samples=samples)
    if clients is not None and client is not None:
        raise ValueError("client= with Datasets of clients as data=; allowed: one of the two")
    clients = client if clients is None else clients
    if test_data is None:
        return OwnData(SamplePart(train), clients=clients)
    test, tests = _by_client("test_data=", test_data, samples=samples)
    if isinstance(client, (str, int)) or callable(client):
        tests = client if tests is None else tests
    return OwnData(SamplePart(train), SamplePart(test), clients=clients, test_clients=tests)


def _of_loaders(train: DataLoader[Any], test: Any) -> L.LightningDataModule:
    """A DataModule of what `Trainer.fit` and `Trainer.test` get."""
    found: Any = L.LightningDataModule()
    found.train_dataloader = lambda: train
    found.test_dataloader = lambda: test
    return found


def _by_client(where: str, data: Any, *, samples: bool) -> tuple[Any, list[Any] | None]:
    """A map-style Dataset, and the client of each sample if it has a part for each client."""
    named = data if isinstance(data, Mapping) else {}
    if isinstance(data, (list, tuple)) and all(isinstance(part, Dataset) for part in data):
        named = dict(enumerate(data))
    arrays_or_lists = [p for p in named.values() if hasattr(p, "ndim") or isinstance(p, Sequence)]
    if not named or arrays_or_lists:
        return _stacked(where, data) if samples else data, None
    if {"train", "test"} <= named.keys():
        raise ValueError(f"{where}: train and test are no clients; allowed: test_data=")
    if named is not data and len(named) in {2, 3}:  # as of random_split
        log.warning(
            "%s: each of %d Datasets is that of a client; test_data= takes test examples, and "
            "torch.utils.data.ConcatDataset(PARTS) joins what is of no client",
            *(where, len(named)),
        )
    return _of_clients(where, named)


def _stacked(where: str, data: Any) -> Any:
    """A map-style Dataset, also of equally long arrays."""
    arrays = isinstance(data, list) and all(isinstance(p, (Tensor, np.ndarray)) for p in data)
    if arrays or isinstance(data, (Mapping, tuple)):
        try:
            return StackDataset(**data) if isinstance(data, Mapping) else StackDataset(*data)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}; {_ALLOWED}") from None
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise ValueError(f"{where} is a {type(data).__name__}; {_ALLOWED}")
    return data


def _of_clients(where: str, clients: Mapping[Any, Any]) -> tuple[Any, list[Any]]:
    """The Datasets of clients, one after the other, and the name of each sample's client."""
    empty = [name for name, part in clients.items() if not len(part)]
    if empty:
        raise ValueError(f"{where}: client {empty[0]} has no sample; allowed: one or more")
    names = [name for name, part in clients.items() for _ in range(len(part))]
    return ConcatDataset(clients.values()), names


def _loader(where: str, module: Any, role: str) -> Any:
    """The loader of a DataModule, which draws each sample of its Dataset once; None without."""
    name = f"{role}_dataloader"
    if not is_overridden(name, module, parent=DataHooks):
        return None
    where, found = f"{where}: {name}", getattr(module, name)()
    found = found.iterables if isinstance(found, CombinedLoader) else found
    if isinstance(found, (Mapping, list, tuple)):
        found = _first_loader(where, found, alone=role == "train")
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
    return found


def _first_loader(where: str, loaders: Any, *, alone: bool) -> Any:
    """The first of several loaders, if that may be."""
    if alone:
        raise ValueError(f"{where} gives {len(loaders)} loaders; allowed: one DataLoader")
    first, *others = loaders if isinstance(loaders, Mapping) else range(len(loaders))
    if others:
        log.warning("%s: of its loaders, %s is used, and %s not", where, first, others)
    return loaders[first]
