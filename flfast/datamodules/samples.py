"""Samples of any structure: what a user's `Dataset` and `collate_fn` make of them.

A batch is the user's own: a tensor, or a tuple, list or dict of tensors, nested, or any object.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten
from torch.utils.data import Dataset

from flfast.datamodules.transforms import BatchTransform


def moved(batch: Any, device: torch.device) -> Any:
    """A batch on a device."""
    return move_data_to_device(batch, device)


class StackedSamples(Dataset[Any]):
    """Samples in memory whose tensors have one shape each.

    Attributes:
        leaves: tensors [N, ...], in torch's order of the structure.
        spec: the structure of a batch.
    """

    def __init__(self, batch: Any) -> None:
        self.leaves: list[Tensor]
        self.leaves, self.spec = tree_flatten(batch)

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
        rows = zip(*map(tree_leaves, samples), strict=True)
        return tree_unflatten([torch.stack(row) for row in rows], self.spec)


Collate = Callable[[Sequence[Any]], Any]
"""Joins samples into a batch."""


class CollatedSamples(Dataset[Any]):
    """Samples that users' Datasets read, one at a time, and that a `collate_fn` joins.

    A batch has samples of one of the Datasets, such as that for tests, which has its own
    `collate_fn`.
    """

    def __init__(self, *parts: tuple[Any, Collate]) -> None:
        self.parts = parts
        self._ends = [*accumulate(len(dataset) for dataset, _ in parts)]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> tuple[int, Any]:
        """The number of the part, and the sample."""
        part = bisect_right(self._ends, index)
        return part, self.parts[part][0][int(index) - ([0, *self._ends][part])]

    def collate(self, samples: Sequence[tuple[int, Any]]) -> Any:
        """The batch of some samples."""
        return self.parts[samples[0][0]][1]([sample for _, sample in samples])


@dataclass(frozen=True)
class SampleTransform:
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
