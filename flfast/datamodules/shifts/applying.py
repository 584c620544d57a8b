"""Applies a shift to the examples of clients: at once in memory, else when they are read."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from flfast.datamodules.examples import ClientIndices, Examples
from flfast.datamodules.shifts.shift import Affected, Drawn, Facts, Shift
from flfast.state.machine import free_memory

log = logging.getLogger(__name__)

_SPLITS = {"always": ("train", "val", "test"), "test": ("test",), "train": ("train",)}
_CHUNK_BYTES = 2**26
_CHUNK_EXAMPLES = 2**16
_NOBODY = -1


def shift_examples(
    examples: Examples,
    shift: Shift,
    splits: Mapping[str, ClientIndices],
    *,
    seed: int,
    clients: Iterable[int] | None = None,
) -> tuple[Examples, Drawn]:
    """Examples as clients have them, and what each of K clients got, [K, ...] by name.

    Examples of no client stay as they are: those of the central test set and of the server. The
    given examples are not changed. Inputs in memory are copied if the copy takes less than half of
    the free memory; otherwise, and if they are a `Dataset`, they are shifted when they are read.
    `splits` are those that the shift is for, `clients` those to shift; None is all.

    Raises:
        ValueError: if these data cannot be shifted so.
    """
    if not shift.changes:
        return examples, {}
    if examples.task == "module":
        raise ValueError(
            f"{shift.name} examples: these are a module's own samples, of any structure; allowed: "
            f"data of flfast, shift=none and attacks on uploads"
        )
    if shift.check is not None:
        shift.check(examples)
    owner = _owner(examples, [splits[name] for name in _SPLITS[shift.at]], clients)
    num_clients = len(next(iter(splits.values())).offsets) - 1
    facts = Facts(seed, examples.num_classes, examples.input_shape)
    drawn = shift.draw(np.arange(num_clients), facts)
    if (owner == _NOBODY).all():
        log.warning("shift.at=%s changes nothing: clients have no such examples", shift.at)
    changing = _Changing(owner, drawn, facts)
    inputs, targets = examples.inputs, examples.targets
    if shift.targets is not None:
        targets = changing.changed(targets, shift.targets)
    if shift.inputs is not None:
        if isinstance(inputs, Tensor) and inputs.nbytes <= free_memory() // 2:
            inputs = changing.changed(inputs, shift.inputs)
        else:
            inputs = ShiftedInputs(inputs, shift.inputs, changing)
    return replace(examples, inputs=inputs, targets=targets), drawn


class _Changing(NamedTuple):
    """Client of each example, int64 [N], -1 if it is not shifted, and what each client drew."""

    owner: np.ndarray
    drawn: Drawn
    facts: Facts

    def affected(self, index: np.ndarray) -> Affected:
        """The given examples of clients, int64 [M]."""
        owner = self.owner[index]
        return Affected(index, {k: v[owner] for k, v in self.drawn.items()}, self.facts)

    def changed(self, values: Tensor, change: Callable[[Tensor, Affected], Tensor]) -> Tensor:
        """New inputs or targets [N, ...]."""
        result = values.clone()
        for index in self._chunks(values):
            place = torch.from_numpy(index)
            result[place] = change(values[place], self.affected(index))
        return result

    def _chunks(self, values: Tensor) -> Iterator[np.ndarray]:
        # Sorted by client: examples that are changed in the same way lie in few chunks.
        order = np.argsort(self.owner, kind="stable")
        order = order[np.searchsorted(self.owner[order], 0) :]
        size = _CHUNK_BYTES * len(values) // max(values.nbytes, 1)
        size = min(max(size, 1), _CHUNK_EXAMPLES)
        yield from (order[start : start + size] for start in range(0, len(order), size))


@dataclass(frozen=True, eq=False)
class ShiftedInputs(Dataset[Tensor]):
    """Inputs that are shifted when they are read."""

    inputs: Tensor | Dataset[Tensor]
    # Not the whole shift: its other functions need not be such that can be pickled.
    change: Callable[[Tensor, Affected], Tensor]
    changing: _Changing

    def __len__(self) -> int:
        return len(self.changing.owner)

    def __getitem__(self, index: int) -> Tensor:
        value = self.inputs[index]
        if self.changing.owner[index] == _NOBODY:
            return value
        return self.change(value[None], self.changing.affected(np.array([index])))[0]


def each_value(
    inputs: Tensor, values: np.ndarray, neutral: float, change: Callable[[Tensor, float], Tensor]
) -> Tensor:
    """New inputs [M, ...]; those whose value, of values [M], is neutral stay as they are.

    `change` maps the inputs [m, ...] of one value, and the value, to new inputs.
    """
    result = inputs.clone()
    for value in np.unique(values[values != neutral]).tolist():
        part = torch.from_numpy(np.flatnonzero(values == value))
        result[part] = change(inputs[part], value)
    return result


def _owner(
    examples: Examples, splits: list[ClientIndices], clients: Iterable[int] | None
) -> np.ndarray:
    owner = np.full(len(examples.targets), _NOBODY)
    for split in splits:
        owner[split.indices] = split.owner()
    if clients is not None:
        owner[~np.isin(owner, list(clients))] = _NOBODY
    return owner
