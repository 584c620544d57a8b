"""Makes samples of a Python program's data, whose batches a LightningModule reads as they are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, StackDataset, Subset

from flfast.api.own_dataset import is_dataset
from flfast.config.errors import ConfigError
from flfast.datamodules.examples import Examples
from flfast.datamodules.own_samples import Facts, Part, own_examples, values_of
from flfast.setup.data_modules import joined, owners

_ALLOWED = (
    "allowed with a LightningModule: its DataModule, a map-style Dataset, a dict or tuple of "
    "equally long tensors or arrays, or a list or dict of Datasets, one for each client"
)


def read_samples(data: Any, test_data: Any, facts: Facts) -> Examples:
    """The samples of `data`, followed by those of `test_data`.

    Raises:
        ValueError: naming the argument, the problem, and what is allowed.
    """
    (train, clients), tests = _dataset("data", data), None
    if clients is not None and facts.client is not None:
        raise ConfigError("client= with Datasets of clients as data=; allowed: one of the two")
    facts = facts if clients is None else facts._replace(client=clients)
    if test_data is None:
        return own_examples(Part(train), facts=facts)
    test, tests = _dataset("test_data", test_data)
    if clients is None and tests is None and _has(facts.client, test):
        tests = facts.client
    return own_examples(Part(train), Part(test), facts=facts, test_client=tests)


def _has(client: Any, data: Any) -> bool:
    """Whether test samples say whose they are; a list of names is that of training samples."""
    try:
        named = isinstance(client, (str, int)) or callable(client)
        return named and len(values_of("client", client, Subset(data, [0]))) == 1
    except ValueError:
        return False


def _dataset(key: str, data: Any) -> tuple[Any, list[Any] | None]:
    """A map-style Dataset, and the client of each sample if it has a part for each client."""
    parts = [*data.values()] if isinstance(data, Mapping) else data
    if isinstance(parts, (list, tuple)) and parts and all(isinstance(p, Dataset) for p in parts):
        named = data if isinstance(data, Mapping) else dict(enumerate(data))
        return joined(f"{key}=", named), owners(named)
    if isinstance(data, (Mapping, tuple)) or (
        isinstance(data, list) and all(isinstance(part, (Tensor, np.ndarray)) for part in data)
    ):
        return _columns(key, data), None
    if isinstance(data, IterableDataset) or not is_dataset(data):
        raise ConfigError(f"{key}= is a {type(data).__name__}; {_ALLOWED}")
    return data, None


def _columns(key: str, data: Any) -> StackDataset[Any]:
    """A Dataset of dicts or tuples, of the parts of all samples."""
    try:
        if not isinstance(data, Mapping):
            return StackDataset(*data)
        nested = {k: _columns(key, v) if isinstance(v, Mapping) else v for k, v in data.items()}
        return StackDataset(**nested)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}=: {error}; {_ALLOWED}") from None
