"""Reads a user's samples into memory once, if batches picked there are the user's own."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from flfast.datamodules.mapped import shared_tensor
from flfast.datamodules.samples import Collate, CollatedSamples, StackedSamples
from flfast.state.machine import free_memory
from flfast.state.randomness import same_generators

_COMPARED = 16
"""Samples that are read again, in pairs, to see whether batches are equal."""


def samples_of(dataset: Any, collate: Collate) -> StackedSamples | CollatedSamples:
    """Samples in memory if they take a third of what is free, and every reading gives the same.

    Otherwise, and if a batch is more than the rows of its samples, they are read and joined each
    time. The global generators are left as they were.
    """
    own = CollatedSamples((dataset, collate))
    with same_generators() as drawn, torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        try:
            found = StackedSamples(_whole(dataset))
        except (TypeError, ValueError):
            found = _read(own)
        equal = found is not None and _is_equal(found, own)
        drawn_too = not torch.equal(before, torch.get_rng_state())
    return found if found is not None and equal and not (drawn or drawn_too) else own


def _whole(data: Any) -> Any:
    """All samples as a batch, of a Dataset of torch's own over tensors in memory.

    Raises:
        TypeError: if it is none.
    """
    kind = type(data)  # a class of a user's may read other samples
    if kind is Tensor:
        return data
    if isinstance(data, np.ndarray):
        return shared_tensor(data)
    if kind is TensorDataset:
        return [*data.tensors]
    if kind is StackDataset:
        parts = data.datasets
        is_dict = isinstance(parts, dict)
        return {k: _whole(v) for k, v in parts.items()} if is_dict else [*map(_whole, parts)]
    if kind is Subset:
        index = torch.as_tensor(data.indices, dtype=torch.int64)
        return tree_map(lambda leaf: leaf[index], _whole(data.dataset))
    if kind is ConcatDataset:
        wholes = [_whole(part) for part in data.datasets]
        if any(tree_flatten(one)[1] != tree_flatten(wholes[0])[1] for one in wholes):
            raise TypeError(kind)
        return tree_map(lambda *parts: torch.cat(parts), *wholes)
    raise TypeError(kind)


def _read(own: CollatedSamples) -> StackedSamples | None:
    """All samples, read one by one; None if a batch of one is not rows of tensors of one shape."""
    rows: list[Tensor] = []
    batch: Any = None
    spec: Any = None
    for number in range(len(own)):
        sample = own[number]
        try:
            batch = own.collate([sample])
        except Exception:  # noqa: BLE001 - a user's function, which may need several samples
            return None
        leaves, kind = tree_flatten(batch)
        if not number:
            if not leaves or not all(map(_is_row, leaves)):
                return None
            if sum(leaf.nbytes for leaf in leaves) * len(own) > free_memory() // 3:
                return None
            rows = [leaf.new_empty(len(own), *leaf.shape[1:]) for leaf in leaves]
            spec = kind
        if kind != spec or any(
            type(leaf) is not Tensor or (leaf.shape[1:], leaf.dtype) != (row.shape[1:], row.dtype)
            for leaf, row in zip(leaves, rows, strict=True)
        ):
            return None
        for leaf, row in zip(leaves, rows, strict=True):
            row[number] = leaf[0]
    return StackedSamples(tree_unflatten(rows, spec))


def _is_row(leaf: Any) -> bool:
    plain = type(leaf) is Tensor and leaf.layout == torch.strided and not leaf.requires_grad
    return plain and leaf.is_cpu and leaf.ndim > 0 and len(leaf) == 1


def _is_equal(found: StackedSamples, own: CollatedSamples) -> bool:
    """Whether some batches are those of the user's own `collate_fn`, which reads them again."""
    chosen = np.linspace(0, len(own) - 1, min(len(own), _COMPARED)).astype(int)
    for index in [chosen[:1], *np.array_split(chosen, -(-len(chosen) // 2))]:
        samples = [own[number] for number in index.tolist()]
        try:
            expected, kind = tree_flatten(own.collate(samples))
            picked, spec = tree_flatten(found.index_select(0, torch.from_numpy(index)))
            assert_close(picked, expected, rtol=0, atol=0, equal_nan=True)
        except Exception:  # noqa: BLE001 - also of a user's function
            return False
        if kind != spec or not all(type(leaf) is Tensor for leaf in expected):
            return False
    return True
