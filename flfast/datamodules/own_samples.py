"""Examples for `task=module`, whose batches are the user's own; see `samples.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten
from torch.utils.data import ConcatDataset, StackDataset, Subset, default_collate

from flfast.datamodules.examples import Examples
from flfast.datamodules.in_memory import samples_of
from flfast.datamodules.missing import as_objects, missing_rows, refuse_missing
from flfast.datamodules.samples import Collate, CollatedSamples, SampleTransform, StackedSamples
from flfast.datamodules.value_names import Clients, number_clients, number_names

_MOST_LABELS = 1000
"""Integers below this, or the number of samples, are labels as they are."""


class Part(NamedTuple):
    """Samples for training, tests or validation: a map-style Dataset and what joins its samples."""

    dataset: Any
    collate: Collate = default_collate


class Facts(NamedTuple):
    """What is known of training samples beside their batches, or says where it is.

    An array or sequence [N]; the name of an attribute of the Dataset; a key, column or index of a
    sample; or a function of a sample. `keys` are the names of both settings.
    """

    client: Any = None
    labels: Any = None
    keys: tuple[str, str] = ("client", "labels")


FACTS = Facts()


def as_samples(examples: Examples) -> Examples:
    """The same examples for a module, in batches [inputs, targets]; labels are their classes."""
    pair: Any = [examples.inputs, examples.targets]
    if isinstance(examples.inputs, Tensor):
        inputs: StackedSamples | CollatedSamples = StackedSamples(pair)
    else:
        inputs = CollatedSamples((StackDataset(*pair), default_collate))
    labels = examples.classes
    return replace(
        examples,
        inputs=inputs,
        targets=_targets(labels, len(examples.targets)),
        labels=None if labels is None else torch.from_numpy(labels),
        task="module",
        transform=SampleTransform(examples.transform),
        rescaled=None,
    )


def own_examples(
    train: Part,
    test: Part | None = None,
    val: Part | None = None,
    *,
    facts: Facts = FACTS,
    test_client: Any = None,
) -> Examples:
    """Examples of a user's Datasets: those for training, then for tests, then for validation.

    Test samples are a central test set, unless `test_client` says whose they are, as `Facts` do.

    Raises:
        ValueError: if there is no sample, or clients or labels are not there.
    """
    parts = [part for part in (train, test, val) if part is not None]
    if not all(len(part.dataset) for part in parts):
        raise ValueError("a Dataset has no sample; allowed: one or more")
    sizes = [0 if part is None else len(part.dataset) for part in (train, test, val)]
    labels, names = _labels(facts, train.dataset)
    if labels is not None:
        labels = np.append(labels, np.zeros(sum(sizes[1:]), np.int64))
    clients = _clients(facts, train, test and test.dataset, test_client)
    role = np.repeat(np.arange(3), sizes)
    return Examples(
        inputs=_joined(parts),
        targets=_targets(labels, len(role)),
        num_classes=1 if labels is None else int(labels.max()) + 1,
        transform=SampleTransform(),
        is_test=role == 1,
        is_val=role == 2 if val is not None else None,
        owner=None if clients is None else np.append(clients.owner, np.full(sizes[2], -1)),
        task="module",
        labels=None if labels is None else torch.from_numpy(labels),
        class_names=names,
        client_names=() if clients is None else clients.names,
    )


def _targets(labels: np.ndarray | None, num: int) -> Tensor:
    return torch.zeros(num, dtype=torch.int64) if labels is None else torch.from_numpy(labels)


def _joined(parts: list[Part]) -> StackedSamples | CollatedSamples:
    """All samples: in memory if all are there, in batches of one structure."""
    found = [samples_of(*part) for part in parts]
    stacked = [one for one in found if isinstance(one, StackedSamples)]
    looks = {str((one.spec, [(t.shape[1:], t.dtype) for t in one.leaves])) for one in stacked}
    if len(stacked) < len(parts) or len(looks) > 1:
        return CollatedSamples(*parts)
    if len(parts) == 1:
        return stacked[0]
    rows = zip(*(one.leaves for one in stacked), strict=True)
    return StackedSamples(tree_unflatten([*map(torch.cat, rows)], stacked[0].spec))


def _clients(facts: Facts, train: Part, test: Any, test_client: Any) -> Clients | None:
    """The clients of samples for training and tests, if they have some."""
    key, given = facts.keys[0], facts.client
    if given is None:
        return None
    names, where = values_of(key, given, train.dataset), f"{key}={_shown(given)}"
    tests = np.full(0 if test is None else len(test), None)
    if test_client is not None:
        tests = values_of(key, test_client, test)
    is_test = np.arange(len(names) + len(tests)) >= len(names)
    found = number_clients(np.append(names, tests), is_test, where=where)
    unknown = tests[found.owner[is_test] < 0]
    if test_client is not None and len(unknown):
        raise ValueError(f"{where}: {unknown[0]} has samples for tests only; allowed: for both")
    return found


def _labels(facts: Facts, data: Any) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Label of each sample, int64 [N], and names of labels, if they are not numbers."""
    key, given = facts.keys[1], facts.labels
    if given is None:
        found = _found_labels(data)
        return (found, ()) if found is not None and _are_numbers(found) else (None, ())
    values, where = values_of(key, given, data), f"{key}={_shown(given)}"
    refuse_missing(where, missing_rows(values))
    plain = np.array(values.tolist())
    if plain.ndim == 1 and plain.dtype.kind in "iub" and _are_numbers(plain):
        return plain.astype(np.int64), ()
    known, numbers = number_names(where, values)
    return numbers, tuple(known)


def _are_numbers(labels: np.ndarray) -> bool:
    return bool(labels.min() >= 0 and labels.max() < max(len(labels), _MOST_LABELS))


def _found_labels(data: Any) -> np.ndarray | None:
    """Integers that a Dataset calls so, or that are the last part of each sample."""
    for name in ("targets", "labels"):
        column = _column(data, name)
        if column is not None and column.dtype.kind in "iu":
            return column.astype(np.int64)
    if _last_integer(data[0]) is None:
        return None
    found = [_last_integer(data[number]) for number in range(len(data))]
    return None if None in found else np.array(found, np.int64)


def _last_integer(sample: Any) -> int | None:
    parts = [*sample.values()] if isinstance(sample, Mapping) else sample
    last = parts[-1] if isinstance(parts, (tuple, list)) and parts else None
    if isinstance(last, (int, np.integer, np.ndarray, Tensor)):
        value = np.asarray(last)
        return int(value.reshape(())) if value.size == 1 and value.dtype.kind in "iu" else None
    return None


def values_of(key: str, given: Any, data: Any) -> np.ndarray:
    """What a setting names of each of N samples of a Dataset, objects [N]; see `Facts`.

    Raises:
        ValueError: if it is not there.
    """
    found = given
    if isinstance(given, (str, int)):
        found = _column(data, given)
    if callable(given) or found is None:
        read = given if callable(given) else partial(_entry, key, given)
        found = [read(data[number]) for number in range(len(data))]
    values = found.tolist() if isinstance(found, (Tensor, np.ndarray)) else [*found]
    if len(values) != len(data):
        raise ValueError(
            f"{key}={_shown(given)}: {len(values)} values for {len(data)} samples; allowed: one "
            f"for each"
        )
    return as_objects([np.asarray(value)[()] for value in values])


def _entry(key: str, name: str | int, sample: Any) -> Any:
    try:
        return sample[name]
    except (KeyError, IndexError, TypeError):
        if isinstance(name, str) and hasattr(sample, name):
            return getattr(sample, name)
    keys = [*sample] if isinstance(sample, Mapping) else type(sample).__name__
    raise ValueError(
        f"{key}={name}: neither the Dataset nor its samples have it; allowed: an attribute of the "
        f"Dataset with a value for each sample, or a key or index of a sample, which is {keys}"
    )


def _column(data: Any, name: str | int) -> np.ndarray | None:
    """A Dataset's attribute, or part, with a value for each of N samples, [N]."""
    found = getattr(data, name, None) if isinstance(name, str) else None
    if found is None and isinstance(data, Subset):
        whole = _column(data.dataset, name)
        return None if whole is None else whole[np.asarray(data.indices)]
    if found is None and isinstance(data, ConcatDataset):
        parts = [part for one in data.datasets if (part := _column(one, name)) is not None]
        return np.concatenate(parts) if len(parts) == len(data.datasets) else None
    if found is None and isinstance(data, StackDataset):
        parts = data.datasets
        found = (parts if isinstance(parts, dict) else dict(enumerate(parts))).get(name)
    if not isinstance(found, (Tensor, np.ndarray, Sequence)) or len(found) != len(data):
        return None
    try:
        values = np.asarray(found)
    except ValueError:  # of different lengths
        return None
    return values if values.ndim == 1 else None


def _shown(given: Any) -> str:
    if isinstance(given, (str, int)):
        return str(given)
    return getattr(given, "__name__", None) or f"a {type(given).__name__}"
