"""Clients of uneven length as calls of programs over stacks: who steps with whom, and when."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from flfast.datamodules.batches import local_epoch
from flfast.engines.fused.run.step_schedule import bucket
from flfast.plan import Batching

SMALL_BATCH = 32
"""Examples up to which a step costs what its operators cost to start: padding is free."""


class LocalSteps(NamedTuple):
    """A client's local steps, one batch each.

    Attributes:
        sizes: examples of every step, int64 [T].
        epoch: examples of a whole local epoch.
    """

    sizes: np.ndarray
    epoch: int


class StackCall(NamedTuple):
    """Equal steps of neighbours in a stack.

    Attributes:
        step: number of the first, counted from the clients' beginning.
        num: steps.
        first: the first client's place in the stack.
        width: clients.
        size: examples of a client's step, padding included.
    """

    step: int
    num: int
    first: int
    width: int
    size: int


def local_steps(
    num_examples: int, batching: Batching, *, epochs: int | None, steps: int | None
) -> LocalSteps:
    """Steps of a client's local training.

    Args:
        num_examples: of the client, >= 1.
        batching: one batch a step, whole.
        epochs: passes; None where `steps` is set.
        steps: how many; None where `epochs` is set.
    """
    epoch = local_epoch(num_examples, batching)
    once = np.diff([start for start, _ in epoch.bounds], append=epoch.bounds[-1][1])
    sizes = np.tile(once, epochs or 1) if steps is None else np.resize(once, steps)
    return LocalSteps(sizes, int(once.sum()))


def grouped(sizes: Sequence[np.ndarray], width: int) -> list[list[int]]:
    """Clients by stack, most steps first, each client in one; all their places are covered.

    Batches of a stack are padded to its largest: more than half of it is padding only where
    batches are small.

    Args:
        sizes: of every client's steps, [T] each.
        width: most clients in a stack, >= 1.
    """
    if width == 1:
        return [[place] for place in range(len(sizes))]
    largest = [int(own.max()) for own in sizes]
    # Small batches are all of one kind, longer ones come by powers of two.
    kind = [max(most, SMALL_BATCH).bit_length() for most in largest]
    order = sorted(range(len(sizes)), key=lambda i: (-kind[i], -len(sizes[i]), -largest[i], i))
    stacks: list[list[int]] = []
    for place in order:
        last = stacks[-1] if stacks else []
        if last and len(last) < width and kind[last[0]] == kind[place]:
            last.append(place)
        else:
            stacks.append([place])
    return stacks


def stack_calls(
    sizes: Sequence[np.ndarray], batching: Batching, *, exact: bool
) -> Iterator[StackCall]:
    """The calls that take every client of a stack through its steps, in their order.

    A client that has finished is in no further call: the stack narrows by as much.

    Args:
        sizes: of every client's steps, [T] each, T descending.
        batching: how examples became steps.
        exact: every batch at its own size, otherwise padded to the stack's largest.
    """
    longest = len(sizes[0])
    table = np.zeros((longest, len(sizes)), dtype=np.int64)  # [T, S], 0 behind a client's end
    for place, own in enumerate(sizes):
        table[: len(own), place] = own
    if not exact:
        table[table > 0] = bucket(int(table.max()), batching)
    starts = np.flatnonzero((table[1:] != table[:-1]).any(1)) + 1
    bounds = [0, *starts.tolist(), longest]
    for start, stop in pairwise(bounds):
        row = table[start]
        edges = [0, *(np.flatnonzero(row[1:] != row[:-1]) + 1).tolist(), len(row)]
        for first, end in pairwise(edges):
            if row[first]:
                yield StackCall(start, stop - start, first, end - first, int(row[first]))
