"""Samples of any structure: what a user's `Dataset` and `collate_fn` make of them.

A batch is the user's own: a tensor, or a tuple, list or dict of tensors, nested, or any object.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import (
    TreeSpec,
    register_pytree_node,
    tree_flatten,
    tree_leaves,
    tree_map_only,
    tree_unflatten,
)
from torch.utils.data import Dataset, StackDataset, TensorDataset, default_collate

from flfast.datamodules.transforms import BatchTransform
from flfast.state.machine import free_memory
from flfast.state.randomness import same_generators

_AT_ONCE = 1024
_COMPARED = 16
"""Samples that are read again, in pairs, to see whether their batches are equal."""


def moved(batch: Any, device: torch.device) -> Any:
    """A batch on a device."""
    return move_data_to_device(batch, device)


class _Nothing:
    """Stands for None where a batch is taken apart: it has no leaf."""


register_pytree_node(_Nothing, lambda _: ([], None), lambda *_: None)


def flatten(batch: Any) -> tuple[list[Any], TreeSpec]:
    """The leaves of a batch and its structure, which has the places of None."""
    return tree_flatten(tree_map_only(type(None), lambda _: _Nothing(), batch))


class StackedSamples(Dataset[Any]):
    """Samples in memory whose tensors have one shape each.

    Attributes:
        leaves: tensors [N, ...], in torch's order of the structure.
        spec: the structure of a batch.
    """

    def __init__(self, batch: Any) -> None:
        self.leaves: list[Tensor]
        self.leaves, self.spec = flatten(batch)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.leaves[0].device

    @property
    def nbytes(self) -> int:
        """Size of the tensors."""
        return sum(leaf.nbytes for leaf in self.leaves)

    def to(self, device: torch.device) -> "StackedSamples":
        """The same samples on a device."""
        return StackedSamples(tree_unflatten([x.to(device) for x in self.leaves], self.spec))

    def __len__(self) -> int:
        return len(self.leaves[0])

    def __getitem__(self, index: int) -> Any:
        return tree_unflatten([leaf[index] for leaf in self.leaves], self.spec)

    def index_select(self, axis: int, index: Tensor) -> Any:
        """The batch of some samples, by their numbers, int64 [B]; the axis is 0."""
        return tree_unflatten([leaf.index_select(axis, index) for leaf in self.leaves], self.spec)

    def collate(self, samples: Sequence[Any]) -> Any:
        """The batch of some samples."""
        rows = zip(*(flatten(sample)[0] for sample in samples), strict=True)
        return tree_unflatten([torch.stack(row) for row in rows], self.spec)


class SamplePart(NamedTuple):
    """Samples for training, tests or validation: a map-style Dataset and what joins them."""

    dataset: Any
    collate: Callable[[Any], Any] = default_collate


class CollatedSamples(Dataset[Any]):
    """Samples that users' Datasets read, one at a time. A batch has samples of one part.

    Attributes:
        ends: number of the first sample behind each part.
    """

    def __init__(self, *parts: SamplePart) -> None:
        self.parts, self.ends = parts, [*accumulate(len(part.dataset) for part in parts)]

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> tuple[int, Any]:
        """The number of the part, and the sample."""
        part = bisect_right(self.ends, index)
        return part, self.parts[part].dataset[index - [0, *self.ends][part]]

    def collate(self, samples: Sequence[tuple[int, Any]]) -> Any:
        """The batch of some samples."""
        return self.parts[samples[0][0]].collate([sample for _, sample in samples])

    def rows(self, index: Sequence[int]) -> tuple[list[Tensor], Any]:
        """The tensors of a batch and its structure; no tensors if they have no row a sample."""
        samples = [self[number] for number in index]
        try:
            leaves, spec = flatten(self.collate(samples))
        except Exception:  # noqa: BLE001 - a user's function, perhaps for other batches
            return [], None
        plain = all(type(x) is Tensor and x.is_cpu and x.layout == torch.strided for x in leaves)
        return (leaves if plain and all(len(x) == len(index) for x in leaves) else []), spec


def samples_of(*parts: SamplePart) -> StackedSamples | CollatedSamples:
    """Samples in memory if they take a third of what is free, and each reading gives the same.

    Otherwise, and if a batch is more than rows of its samples, they are read and joined each time.
    The global generators are left as they were; what draws from them is random.
    """
    own = CollatedSamples(*parts)
    with same_generators() as drawn, torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        found = _read(own)
        equal = found is not None and all(_is_equal(found, own, pair) for pair in _pairs(own))
        equal &= torch.equal(before, torch.get_rng_state())
    return found if found is not None and equal and not drawn else own


def _read(samples: CollatedSamples) -> StackedSamples | None:
    """All samples; None if batches are not rows of tensors of one shape, or do not fit."""
    batches: list[list[Tensor]] = []
    looks = set()
    for number, part in enumerate(samples.parts):
        whole = _whole(part.dataset) if part.collate is default_collate else None
        start = samples.ends[number] - len(part.dataset)
        size = len(part.dataset) if whole else _AT_ONCE
        for first in range(start, samples.ends[number], size):
            index = range(first, min(first + size, samples.ends[number]))
            leaves, spec = flatten(whole) if whole else samples.rows(index)
            looks.add(str([spec, [(leaf.shape[1:], leaf.dtype) for leaf in leaves]]))
            num_bytes = 0 if whole else sum(leaf.nbytes for leaf in leaves) // len(index)
            if not leaves or len(looks) > 1 or num_bytes * len(samples) > free_memory() // 3:
                return None
            batches.append(leaves)
    joined = [row[0] if len(row) == 1 else torch.cat(row) for row in zip(*batches, strict=True)]
    return StackedSamples(tree_unflatten(joined, spec))


def _whole(data: Any) -> Any:
    """All samples of a Dataset of torch's own over tensors in memory, as a batch; else None."""
    parts: Any = data.datasets if type(data) is StackDataset else None
    parts = data.tensors if type(data) is TensorDataset else parts
    parts = [*parts] if isinstance(parts, tuple) else parts
    leaves = tree_leaves(parts)
    return parts if all(type(x) is Tensor and x.is_cpu and x.ndim for x in leaves) else None


def _pairs(samples: CollatedSamples) -> Iterator[np.ndarray]:
    """Numbers of some samples of each part: of the first, and pairs."""
    for stop, part in zip(samples.ends, samples.parts, strict=True):
        num = len(part.dataset)
        chosen = np.linspace(stop - num, stop - 1, min(num, _COMPARED)).astype(int)
        yield from [chosen[:1], *np.array_split(chosen, -(-len(chosen) // 2))]


def _is_equal(stacked: StackedSamples, collated: CollatedSamples, index: np.ndarray) -> bool:
    """Whether a batch is that of the user's own `collate_fn`, which reads it again."""
    leaves, spec = collated.rows(index.tolist())
    picked = [leaf[torch.from_numpy(index)] for leaf in stacked.leaves]
    try:
        assert_close(picked, leaves, rtol=0, atol=0, equal_nan=True)
    except AssertionError:
        return False
    return bool(spec == stacked.spec)


@dataclass(frozen=True)
class SampleTransform(BatchTransform):
    """Changes a batch as `BatchTransform` does; of pairs from flfast's own sources the inputs.

    Other batches keep their values. With a Trainer of 64 or 16 bits their numbers get its type,
    as Lightning's own conversion gives them.
    """

    inputs: BatchTransform | None = None

    @property
    def augments(self) -> bool:
        """Whether training batches are changed at random."""
        return self.inputs is not None and self.inputs.augments

    def __call__(
        self, batch: Any, *, dtype: torch.dtype, rng: np.random.Generator | None = None
    ) -> Any:
        """The batch in the data type of the model."""
        if self.inputs is not None:
            return [self.inputs(batch[0], dtype=dtype, rng=rng), *batch[1:]]
        if dtype == torch.float32:
            return batch
        return tree_map_only(Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, batch)
