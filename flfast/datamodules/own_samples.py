"""Examples for `task=module`, whose batches are the user's own; see `samples.py`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, StackDataset, Subset

from flfast.datamodules.examples import Examples
from flfast.datamodules.missing import as_objects, missing_rows, refuse_missing
from flfast.datamodules.samples import (
    CollatedSamples,
    SamplePart,
    SampleTransform,
    StackedSamples,
    samples_of,
)
from flfast.datamodules.value_names import Clients, number_clients, number_names

_MOST_LABELS = 1000


def as_samples(examples: Examples) -> Examples:
    """The same examples for a module, in batches [inputs, targets]; labels are their classes."""
    pair: Any = [examples.inputs, examples.targets]
    inputs: Any = CollatedSamples(SamplePart(StackDataset(*pair)))
    inputs = StackedSamples(pair) if isinstance(examples.inputs, Tensor) else inputs
    transform = SampleTransform(inputs=examples.transform)
    about = _labelled(examples.classes, len(examples.targets))
    given = replace(examples, rescaled=None)
    return replace(given, inputs=inputs, task="module", transform=transform, **about)


def _labelled(labels: np.ndarray | None, num: int) -> dict[str, Any]:
    """Labels [M] as those of `num` examples, the last ones of which have none."""
    targets = torch.zeros(num, dtype=torch.int64)
    if labels is not None:
        targets[: len(labels)] = torch.from_numpy(labels)
    return {"targets": targets, "labels": None if labels is None else targets}


def own_examples(  # noqa: PLR0913 - parts, and what is known of their samples
    train: SamplePart,
    test: SamplePart | None = None,
    val: SamplePart | None = None,
    *,
    client: Any = None,
    test_client: Any = None,
    labels: Any = None,
    keys: tuple[str, str] = ("client", "labels"),
) -> Examples:
    """Examples of a user's Datasets: those for training, then for tests, then for validation.

    Args:
        train: for training.
        test: the central test set, unless `test_client` says whose samples they are.
        val: the central validation set.
        client: client of each training sample; see `values_of`.
        test_client: likewise of each test sample.
        labels: label of each training sample. By default the integers that the Dataset calls
            `targets` or `labels`, or that are the last part of each sample; else there are none.
        keys: names of the settings `client` and `labels`, for errors.

    Raises:
        ValueError: if there is no sample, or clients or labels are not there.
    """
    parts = [part for part in (train, test, val) if part is not None]
    if not all(len(part.dataset) for part in parts):
        raise ValueError("a Dataset has no sample; allowed: one or more")
    num_train, num_test, num_val = (len(p.dataset) if p else 0 for p in (train, test, val))
    role = np.repeat(np.arange(3), [num_train, num_test, num_val])
    known, class_names = _labels(keys[1], labels, train.dataset)
    about = _labelled(known, len(role))
    if client is not None:
        tests = np.full(num_test, None)
        if test is not None and test_client is not None:
            tests = values_of(keys[0], test_client, test.dataset)
        names = np.append(values_of(keys[0], client, train.dataset), tests)
        found = _clients(f"{keys[0]}={_shown(client)}", names, role[role < 2] == 1)
        about["owner"] = np.append(found.owner, np.full(num_val, -1))
        about["client_names"] = found.names
    return Examples(
        inputs=samples_of(*parts),
        num_classes=int(about["targets"].max()) + 1,
        transform=SampleTransform(),
        is_test=role == 1,
        is_val=None if val is None else role == 2,
        task="module",
        class_names=class_names,
        **about,
    )


def _clients(where: str, names: np.ndarray, is_test: np.ndarray) -> Clients:
    """The clients of samples for training and tests, if any of these has one."""
    found = number_clients(names, is_test, where=where)
    unknown = [name for name in names[found.owner < 0] if name is not None]
    if unknown:
        raise ValueError(f"{where}: {unknown[0]} has samples for tests only; allowed: for both")
    return found


def _labels(key: str, given: Any, data: Any) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Label of each sample, int64 [N], and names of labels that are not numbers."""
    if given is None:
        columns = (_column(data, name) for name in ("targets", "labels"))
        found = next((column for column in columns if column is not None), None)
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
