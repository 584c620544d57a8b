"""Reads batches of examples by index, from memory or with worker processes."""

import errno
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, StackDataset

from flfast.datamodules.batches import Fetch
from flfast.datamodules.examples import Examples
from flfast.datamodules.samples import CollatedSamples, StackedSamples

_SHARED = "/dev/shm"
_FULL = (
    "no shared memory is left for the batches of loader.num_workers; allowed: "
    "loader.num_workers=0, or more of it (docker run --shm-size)"
)


class Loading(NamedTuple):
    """How examples are read.

    Attributes:
        eval_batch_size: examples per evaluation batch.
        num_workers: worker processes; 0 reads in the main process.
        pin_memory: page-locked batches, for faster copies to a GPU.
        persistent_workers: keep workers for the whole run.
        samples: whether batches are [inputs, targets], for a module that reads both.
    """

    eval_batch_size: int
    num_workers: int = 0
    pin_memory: bool = False
    persistent_workers: bool = False
    samples: bool = False


def make_fetch(examples: Examples, loading: Loading) -> Fetch:
    """A function that reads batches: from memory, unless workers or a `Dataset` are used."""
    if isinstance(examples.inputs, Tensor | StackedSamples) and not loading.num_workers:
        return _from_memory(examples.inputs, examples.targets, pin_memory=loading.pin_memory)
    return _LoaderFetch(examples, loading)


def _batch(samples: StackedSamples | CollatedSamples, items: list[Any]) -> tuple[Any, Tensor]:
    inputs, targets = zip(*items, strict=True)
    return samples.collate(inputs), torch.stack(targets)


def _from_memory(inputs: Any, targets: Tensor, *, pin_memory: bool) -> Fetch:
    def fetch(batches: Sequence[np.ndarray]) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in batches:
            index = torch.from_numpy(indices)
            # index_select is several times faster than inputs[index].
            batch = inputs.index_select(0, index), targets[index]
            yield tree_map_only(Tensor, Tensor.pin_memory, batch) if pin_memory else batch

    return fetch


class _LoaderFetch:
    """Reads batches with one DataLoader for the whole run, so that workers can persist."""

    def __init__(self, examples: Examples, loading: Loading) -> None:
        self._batches: list[list[int]] = []
        columns: Any = (examples.inputs, examples.targets)
        own = isinstance(columns[0], StackedSamples | CollatedSamples)
        self._loader: DataLoader[Any] = DataLoader(
            StackDataset(*columns),
            collate_fn=partial(_batch, columns[0]) if own else None,
            batch_sampler=self._batches,  # it may change between iterations
            num_workers=loading.num_workers,
            pin_memory=loading.pin_memory,
            persistent_workers=loading.persistent_workers,
            # By default, DataLoader draws from the global generator, which dropout uses.
            generator=torch.Generator(),
        )

    def __call__(self, batches: Sequence[np.ndarray]) -> Iterator[tuple[Tensor, Tensor]]:
        self._batches[:] = [indices.tolist() for indices in batches]
        try:
            yield from self._loader
        except (OSError, RuntimeError) as error:
            # torch names no file; a worker that was killed says "out of shared memory".
            full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            if full or "shared memory" in str(error):
                raise OSError(errno.ENOSPC, _FULL, _SHARED) from error
            raise

    def close(self) -> None:
        """End the workers now: at garbage collection, joining each of them takes 5 s."""
        del self._loader
