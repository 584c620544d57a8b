"""A user's LightningDataModule as the data of a run: what is behind its loaders."""

import logging
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from flfast.datamodules.examples import Examples
from flfast.datamodules.own_samples import FACTS, Facts, Part, own_examples
from flfast.state.environment import integer

log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """What a DataModule loads: its parts, the training batch size, and clients, if it has some."""

    train: Part
    test: Part | None
    val: Part | None
    batch_size: int
    clients: Any


def load(where: str, module: DataHooks) -> Loaded:
    """Prepare and set up a DataModule, and read its loaders; `where` begins errors.

    Raises:
        ValueError: if batches of its loaders would not be what the run trains with.
    """
    if isinstance(module, nn.Module):  # whose own loaders these are, and which is set up again
        module = deepcopy(module)
    if not integer("LOCAL_RANK", 0):
        module.prepare_data()
    for stage in ("fit", "test"):
        module.setup(stage)
    train, *others = (_loader(where, module, role) for role in ("train", "test", "val"))
    if train is None:
        raise ValueError(f"{where}: has no train_dataloader; allowed: one")
    test, val = (loader and Part(loader.dataset, loader.collate_fn) for loader in others)
    part, clients = Part(train.dataset, train.collate_fn), getattr(module, "clients", None)
    if isinstance(clients, Mapping):
        part, clients = part._replace(dataset=joined(f"{where}.clients", clients)), owners(clients)
    return Loaded(part, test, val, train.batch_size, clients)


def module_examples(where: str, module: DataHooks, facts: Facts = FACTS) -> Examples:
    """The examples of a DataModule, in its own batches, for `task=module`.

    Raises:
        ValueError: as `load` and `own_examples`.
    """
    found = load(where, module)
    if facts.client is None and found.clients is not None:
        facts = facts._replace(client=found.clients)
    examples = own_examples(found.train, found.test, found.val, facts=facts)
    own = None if isinstance(module, nn.Module) else module
    return replace(examples, datamodule=own, batch_size=found.batch_size)


def joined(where: str, clients: Mapping[Any, Any]) -> ConcatDataset[Any]:
    """The Datasets of clients, by name, one after the other."""
    for name, part in clients.items():
        if not len(part):
            raise ValueError(f"{where}: client {name} has no sample; allowed: one or more")
    return ConcatDataset(clients.values())


def owners(clients: Mapping[Any, Any]) -> list[Any]:
    """The name of each sample's client."""
    return [name for name, part in clients.items() for _ in range(len(part))]


def _loader(where: str, module: Any, role: str) -> DataLoader[Any] | None:
    """The loader of a role, if its batches are samples of a Dataset, in order or shuffled."""
    name = f"{role}_dataloader"
    if not is_overridden(name, module, parent=DataHooks):
        return None
    where, found = f"{where}: {name}", getattr(module, name)()
    if isinstance(found, CombinedLoader):
        found = found.iterables
    if isinstance(found, (Mapping, list, tuple)):
        if role == "train":
            raise ValueError(f"{where} gives {len(found)} loaders; allowed: one DataLoader")
        keys = [*(found if isinstance(found, Mapping) else range(len(found)))]
        if len(keys) > 1:
            log.warning("%s: of %d loaders, only the first is used: %s", where, len(keys), keys[0])
        found = found[keys[0]] if keys else None
    if found is None:
        return None
    if not isinstance(found, DataLoader) or type(found).__iter__ is not DataLoader.__iter__:
        raise ValueError(f"{where} gives a {type(found).__name__}; allowed: torch's DataLoader")
    if isinstance(found.dataset, IterableDataset):
        kind = type(found.dataset).__name__
        raise ValueError(f"{where}: {kind} is an IterableDataset; allowed: one with a length")
    own = [found.sampler, found.batch_sampler]
    for sampler, known in zip(own, ((SequentialSampler, RandomSampler), (BatchSampler,)), strict=True):
        replaces = getattr(sampler, "replacement", False)
        if type(sampler) not in known or replaces or len(found.sampler) != len(found.dataset):
            kind = type(sampler).__name__
            raise ValueError(
                f"{where} has the sampler {kind}{'(replacement=True)' if replaces else ''}, and "
                f"clients would draw without it; allowed: shuffle=True or False, and weights in "
                f"the loss"
            )
    return found
