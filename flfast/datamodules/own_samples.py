"""What is known of a user's samples: clients, labels, and what they are for; see `samples.py`."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, StackDataset, Subset

from flfast.datamodules.examples import Examples
from flfast.datamodules.missing import as_objects, missing_owners, missing_rows, refuse_missing
from flfast.datamodules.samples import (
    CollatedSamples,
    SamplePart,
    SampleTransform,
    StackedSamples,
    samples_of,
)
from flfast.datamodules.value_names import number_clients, number_names

_MOST_LABELS = 1000

log = logging.getLogger(__name__)


def as_samples(examples: Examples) -> Examples:
    """The same examples for a module, in batches [inputs, targets]; labels are their classes."""
    pair: Any = [examples.inputs, examples.targets]
    inputs: Any = CollatedSamples(SamplePart(StackDataset(*pair)))
    inputs = StackedSamples(pair) if isinstance(examples.inputs, Tensor) else inputs
    plain = examples.transform
    transform = SampleTransform(inputs=plain, mean=plain.mean, std=plain.std)
    labels = padded_labels(examples.classes, len(examples.targets))
    targets = torch.zeros(len(examples.targets), dtype=torch.int64) if labels is None else labels
    made = {"inputs": inputs, "targets": targets, "labels": labels, "transform": transform}
    return replace(examples, **made, task="module", rescaled=None)


def padded_labels(labels: np.ndarray | None, num: int) -> Tensor | None:
    """Labels [M] as those of `num` examples, the last ones of which have none and get 0."""
    return None if labels is None else F.pad(torch.from_numpy(labels), (0, num - len(labels)))


class OwnData(NamedTuple):
    """The Datasets that a user's data are, in whatever form they came.

    Attributes:
        train: samples for training.
        test: samples for tests, if there are any.
        val: samples for validation, likewise.
        clients: client of each sample for training; see `values_of`. None: there are none.
        test_clients: likewise of each one for tests; None: these are a central test set.
        batch_size: that of the loader for training; None without loaders.
        datamodule: the LightningDataModule, whose hooks change batches.
    """

    train: SamplePart
    test: SamplePart | None = None
    val: SamplePart | None = None
    clients: Any = None
    test_clients: Any = None
    batch_size: int | None = None
    datamodule: Any = None


def own_examples(
    data: OwnData, labels: Any = None, keys: tuple[str, str] = ("client", "labels")
) -> Examples:
    """Examples of a user's Datasets: those for training, then for tests, then for validation.

    Args:
        data: the Datasets, and whose their samples are.
        labels: label of each training sample; see `values_of`. By default the integers that the
            Dataset calls `targets` or `labels`, or that are the last part of each sample; else
            there are none.
        keys: names of the settings of clients and labels, for errors.

    Raises:
        ValueError: if there is no sample, or clients or labels are not there.
    """
    parts = [part for part in data[:3] if part is not None]
    if not all(len(part.dataset) for part in parts):
        raise ValueError("a Dataset has no sample; allowed: one or more")
    sizes = [len(part.dataset) if part else 0 for part in data[:3]]
    known, class_names = sample_labels(keys[1], labels, data.train.dataset)
    if labels is None and data.clients is None and known is not None:
        _warn_of_third_part(data.train.dataset, keys)
    found = padded_labels(known, sum(sizes))
    targets = torch.zeros(sum(sizes), dtype=torch.int64) if found is None else found
    return Examples(
        inputs=samples_of(*parts),
        targets=targets,
        num_classes=int(targets.max()) + 1,
        transform=SampleTransform(),
        task="module",
        labels=found,
        class_names=class_names,
        batch_size=data.batch_size,
        datamodule=data.datamodule,
        **roles(sizes, client_names(keys[0], data)),
    )


def _warn_of_third_part(data: Any, keys: tuple[str, str]) -> None:
    """Say that a part of samples is taken for labels that may be clients' names."""
    if _label_column(data) is not None:
        return
    sample = data[0]
    if isinstance(sample, (tuple, list)) and len(sample) == 3:
        log.warning(
            "samples have 3 parts, and the last one is taken for their labels; %s=2 makes it the "
            "names of clients, %s=2 says that it is labels",
            *keys,
        )


class ClientNames(NamedTuple):
    """Name of the client of each example for training and of each one for tests, if known.

    Attributes:
        where: begins errors about them.
        train: names [N]; None: the data have no clients.
        test: names [M]; None, or no name in any row: these examples are a central test set.
    """

    where: str = "data=: the clients"
    train: np.ndarray | None = None
    test: np.ndarray | None = None


def client_names(key: str, data: OwnData) -> ClientNames:
    """The clients of a user's samples. Those for tests may lack their attribute or key.

    Raises:
        ValueError: as `values_of`.
    """
    client, tests = data.clients, data.test_clients
    if client is None and tests is None:
        return ClientNames()
    names = None if client is None else values_of(key, client, data.train.dataset)
    own = None
    if data.test is not None and tests is not None and _says(key, tests, data.test):
        own = values_of(key, tests, data.test.dataset)
    return ClientNames(f"{key}={_shown(client)}", names, own)


def _says(key: str, given: Any, test: Any) -> bool:
    """Whether the first sample for tests has what `given` names; names themselves are there."""
    if isinstance(given, (str, int)) or callable(given):
        try:
            values_of(key, given, Subset(test.dataset, [0]))
        except ValueError:
            return False
    return True


def roles(sizes: Sequence[int], clients: ClientNames) -> dict[str, Any]:
    """Attributes of `Examples`: what its examples are for, and whose they are.

    Args:
        sizes: numbers of examples for training, for tests, and for validation, in this order.
        clients: whose they are.

    Raises:
        ValueError: if a name is missing, or is that of test examples only.
    """
    where, names, tests = clients
    role = np.repeat(np.arange(3), sizes)
    found: dict[str, Any] = {"is_test": role == 1, "is_val": role == 2 if sizes[2] else None}
    if names is None:
        if tests is not None:
            raise ValueError("test_data= names clients, and data= does not; allowed: both do")
        return found
    refuse_missing(where, missing_owners(names))
    central = tests is None or bool(missing_owners(tests).all())
    if tests is not None and not central:
        refuse_missing("test_data=: the clients", missing_owners(tests))
    if sizes[1]:
        own = np.full(sizes[1], None) if tests is None or central else np.ma.getdata(tests)
        names = np.concatenate([as_objects(np.ma.getdata(names)), as_objects(own)])
    known = number_clients(names, role[: len(names)] == 1, where=where)
    if not central and (unknown := known.owner < 0).any():
        raise ValueError(f"test_data=: client {names[unknown][0]} has no examples in data=")
    owner = np.append(known.owner, np.full(sizes[2], -1))
    return found | {"owner": owner, "client_names": known.client_names}


def sample_labels(key: str, given: Any, data: Any) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Label of each sample, int64 [N], and names of labels that are not numbers."""
    if given is None:
        found = _label_column(data)
        if found is None and _last(data[0]) is not None:
            found = np.array([_last(data[number]) for number in range(len(data))])
        return (None if found is None or not _are_numbers(found) else found.astype(np.int64)), ()
    values, where = values_of(key, given, data), f"{key}={_shown(given)}"
    refuse_missing(where, missing_rows(values))
    plain = np.array(values.tolist())
    if plain.ndim == 1 and _are_numbers(plain):
        return plain.astype(np.int64), ()
    names, numbers = number_names(where, values)
    return numbers, tuple(names)


def _label_column(data: Any) -> np.ndarray | None:
    """The labels that a Dataset has beside its samples, [N]."""
    columns = (_column(data, name) for name in ("targets", "labels"))
    return next((column for column in columns if column is not None), None)


def _are_numbers(labels: np.ndarray) -> bool:
    """Whether these are labels as they are: integers from 0, not much larger than their number."""
    most = max(labels.size, _MOST_LABELS)
    return labels.dtype.kind in "iub" and bool(labels.min() >= 0 and labels.max() < most)


def _last(sample: Any) -> int | None:
    """The integer that is a sample's last part; None if that is no integer."""
    parts = [*sample.values()] if isinstance(sample, Mapping) else sample
    last = parts[-1] if isinstance(parts, (tuple, list)) and parts else None
    last = last.detach().cpu() if isinstance(last, Tensor) else last
    known = isinstance(last, (int, np.generic, np.ndarray, Tensor))
    found = np.asarray(last if known else [])
    return int(found.reshape(())) if found.size == 1 and found.dtype.kind in "iu" else None


def values_of(key: str, given: Any, data: Any) -> np.ndarray:
    """A value for each of N samples of a Dataset, objects [N].

    `given` is a sequence of them, the name of an attribute of the Dataset that is one, a key or
    index of a sample, or a function of a sample.

    Raises:
        ValueError: if it is none of them; begins with `key`.
    """
    found = _column(data, given) if isinstance(given, str) else given
    if isinstance(given, int) or callable(given) or found is None:
        read: Any = given if callable(given) else lambda sample: sample[given]
        try:
            found = [read(data[number]) for number in range(len(data))]
        except (KeyError, IndexError, TypeError) as error:
            if callable(given):
                raise
            parts = [*data[0]] if isinstance(data[0], Mapping) else len(data[0])
            raise ValueError(
                f"{key}={given}: allowed: an attribute of the Dataset with a value for each "
                f"sample, or a key or index of a sample, which has {parts}"
            ) from error
    if len(found) != len(data):
        num = f"{len(found)} values for {len(data)} samples"
        raise ValueError(f"{key}={_shown(given)}: {num}; allowed: one for each")
    return as_objects([np.asarray(value)[()] for value in found])


def _column(data: Any, name: str) -> np.ndarray | None:
    """An attribute with a value for each sample, [N], of a Dataset or of what it is made of."""
    found = getattr(data, name, None)
    if found is None and isinstance(data, Subset):
        whole = _column(data.dataset, name)
        found = None if whole is None else whole[np.asarray(data.indices)]
    if found is None and isinstance(data, ConcatDataset):
        parts = [part for one in data.datasets if (part := _column(one, name)) is not None]
        found = np.concatenate(parts) if len(parts) == len(data.datasets) else None
    try:
        values = np.asarray(found)
    except (ValueError, TypeError):  # of several lengths, or on a GPU
        return None
    return values if values.shape == (len(data),) else None


def _shown(given: Any) -> str:
    if isinstance(given, (str, int)):
        return str(given)
    return getattr(given, "__name__", f"a {type(given).__name__}")
