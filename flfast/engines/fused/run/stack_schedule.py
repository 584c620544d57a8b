"""Schedules local steps of clients of uneven length, for training in stacks.

`engines/fused/training.py` groups a round's clients into stacks with `group_clients`, and parts
those whose states have other leaves with `with_equal_leaves`. `client_stack.py` then runs one
stack's `stack_spans` in order. For clients that train alone, `step_schedule.py` does this work.
Before the first round of a plan it asks `auto_width` how many clients train together, with the
traced step of one client.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from flfast.datamodules.batches import local_epoch
from flfast.datamodules.client_data import ClientDataModule
from flfast.engines.fused.graph.dataflow import is_random
from flfast.engines.fused.graph.trace import placeholders
from flfast.engines.fused.run.step_schedule import padded_size
from flfast.engines.site import ClientStart
from flfast.state.plan import Batching
from flfast.state.tree import Tree, same_names

aten = torch.ops.aten

CPU_BYTES = 2**22
"""Largest size of a stack's states on the CPU. Compared with single clients, states of 4 MB took
0.5 to 0.9 of the time, and states of 16 MB took 1.3 of it."""

CPU_WIDTH = 16
"""Largest stack on the CPU; wider ones are not faster."""

CPU_PRODUCTS = 2**19
"""Largest step (parameters times examples) to stack on the CPU. Larger matrix products use the
core fully without a stack."""

FREE_SHARE = 0.5
"""Share of a GPU's free memory that a stack may take."""

SMALL_BATCH = 32
"""Batch size up to which a step costs as much as launching its operators: padding is free."""


class LocalSteps(NamedTuple):
    """A client's local steps, one batch each.

    Attributes:
        sizes: batch size of every step, int64 [T].
        epoch: number of examples in a whole local epoch.
        total: number of examples in all steps.
    """

    sizes: np.ndarray
    epoch: int
    total: int


class StackSpan(NamedTuple):
    """Consecutive steps of equal size, of adjacent clients in a stack.

    Attributes:
        step: index of the first step in local training.
        num: number of steps.
        place: the first client's place in the stack.
        width: number of clients.
        size: batch size of each client, padding included.
    """

    step: int
    num: int
    place: int
    width: int
    size: int


@lru_cache(maxsize=256)
def local_steps(
    num_examples: int, batching: Batching, *, epochs: int | None, steps: int | None
) -> LocalSteps:
    """The steps of a client's local training.

    Args:
        num_examples: number of examples of the client, >= 1.
        batching: one batch per step, without micro-batches.
        epochs: local epochs; None where `steps` is set.
        steps: local steps; None where `epochs` is set.
    """
    epoch = local_epoch(num_examples, batching)
    one_epoch = np.diff([start for start, _ in epoch.bounds], append=epoch.bounds[-1][1])
    sizes = np.tile(one_epoch, epochs or 1) if steps is None else np.resize(one_epoch, steps)
    sizes.setflags(write=False)
    return LocalSteps(sizes, int(one_epoch.sum()), int(sizes.sum()))


def group_clients(
    sizes: Sequence[np.ndarray], width: int, *, exact: bool = False
) -> list[list[int]]:
    """Group clients into stacks; within a stack those with the most steps come first.

    A stack pads its batches to its largest one. Clients are therefore grouped by batch size, so
    that more than half of a batch is padding only where batches are small.

    Args:
        sizes: batch sizes of every client's steps, [T] each.
        width: largest number of clients in a stack, >= 1.
        exact: batches keep their sizes, so clients with equal ones should be neighbours.

    Returns:
        Stacks of positions in `sizes`; every client is in exactly one stack.
    """
    if width == 1:
        return [[place] for place in range(len(sizes))]
    largest = [int(client.max()) for client in sizes]
    # All small batches are one group. Larger ones are grouped by powers of two.
    group = [max(size, SMALL_BATCH).bit_length() for size in largest]
    total = [-int(client.sum()) if exact else 0 for client in sizes]
    order = sorted(
        range(len(sizes)), key=lambda i: (-group[i], -len(sizes[i]), -largest[i], total[i], i)
    )
    stacks: list[list[int]] = []
    for place in order:
        last = stacks[-1] if stacks else []
        if last and len(last) < width and group[last[0]] == group[place]:
            last.append(place)
        else:
            stacks.append([place])
    return stacks


def with_equal_leaves(stack: Sequence[ClientStart]) -> list[list[int]]:
    """Places of clients in groups whose contexts have leaves of the same names, to be joined.

    In one cohort some clients may have kept a state, such as a momentum, and others not yet.
    Within a group the order stays.
    """
    groups: list[tuple[Tree, list[int]]] = []
    for place, start in enumerate(stack):
        trees = start.context.trees
        known = (places for first, places in groups if same_names(first, trees))
        places = next(known, None)
        if places is None:
            groups.append((trees, [place]))
        else:
            places.append(place)
    return [places for _, places in groups]


def stack_spans(table: np.ndarray, batching: Batching, *, exact: bool) -> Iterator[StackSpan]:
    """The spans that take all local steps of a stack, in order.

    Clients that have finished are in no further span, so the stack becomes narrower.

    Args:
        table: batch sizes of every client's steps, int64 [T, S], 0 after its last step; fastest
            if the numbers of steps descend.
        batching: that gave these sizes.
        exact: keep every batch at its own size; otherwise pad all to the stack's largest.
    """
    if not exact:
        table = np.where(table > 0, padded_size(int(table.max()), batching), 0)
    if (table == table[0, 0]).all():
        yield StackSpan(0, len(table), 0, table.shape[1], int(table[0, 0]))
        return
    starts = np.flatnonzero((table[1:] != table[:-1]).any(1)) + 1
    bounds = [0, *starts.tolist(), len(table)]
    for start, stop in pairwise(bounds):
        row = table[start]
        edges = [0, *(np.flatnonzero(row[1:] != row[:-1]) + 1).tolist(), len(row)]
        for first, end in pairwise(edges):
            if row[first]:
                yield StackSpan(start, stop - start, first, end - first, int(row[first]))


class StackOrder:
    """The indices of every client's examples in the order of its steps.

    Attributes:
        data: data of the clients.
        sizes: batch sizes of their steps, int64 [T, S]; 0 after a client's last step.
        seen: targets that count of each client's steps, int64 [S].
    """

    def __init__(self, data: list[ClientDataModule], steps: list[LocalSteps]) -> None:
        longest = max(len(client.sizes) for client in steps)
        self.data, self.sizes = data, np.zeros((longest, len(steps)), dtype=np.int64)
        for place, client in enumerate(steps):
            self.sizes[: len(client.sizes), place] = client.sizes
        orders = [_order(client, of_client) for client, of_client in zip(data, steps, strict=True)]
        examples = data[0].data.examples
        self.seen = np.array([examples.num_counted(order) for order in orders])
        self._indices = np.concatenate(orders)
        ends = np.cumsum(self.sizes.T).reshape(self.sizes.shape[::-1]).T
        self._starts = ends - self.sizes  # of each step in the indices

    def indices(self, span: StackSpan) -> tuple[np.ndarray, np.ndarray]:
        """A span's indices [T, S, B], any index where it is padding, and batch sizes [T, S]."""
        steps = slice(span.step, span.step + span.num)
        members = slice(span.place, span.place + span.width)
        sizes, starts = self.sizes[steps, members], self._starts[steps, members, None]
        row = np.arange(span.size)
        places = np.where(row < sizes[:, :, None], starts + row, starts[:1])
        return self._indices[places], sizes


def _order(data: ClientDataModule, steps: LocalSteps) -> np.ndarray:
    """Indices of a client's examples in the order of its steps, over all local epochs."""
    left, parts = steps.total, []
    while left:
        parts.append(data.next_order()[: min(left, steps.epoch)])
        left -= len(parts[-1])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def read_groups(
    spans: Iterable[StackSpan], num_rows: int, *, together: bool
) -> Iterator[list[StackSpan]]:
    """Spans in groups whose rows one gather reads: at most `num_rows`, but at least one step.

    Longer spans are divided. Without `together`, every group is one span.
    """
    group, taken = list[StackSpan](), 0
    for span in spans:
        per_step = span.width * span.size
        at_once = max(num_rows // per_step, 1)
        for start in range(0, span.num, at_once):
            num = min(at_once, span.num - start)
            if group and not (together and taken + num * per_step <= num_rows):
                yield group
                group, taken = [], 0
            group.append(span._replace(step=span.step + start, num=num))
            taken += num * per_step
    if group:
        yield group


def auto_width(
    step: GraphModule, model: nn.Module, *, num_examples: int, unfold: bool = False
) -> int:
    """The number of clients to train together; 1 where stacks are not faster.

    `step` is traced, of one client, and `num_examples` those of the largest batch.
    With `unfold`, convolutions keep their windows in memory.
    """
    inputs = [node.meta["val"] for node in placeholders(step.graph) if node.users]
    state = sum(map(_bytes, inputs))
    device = inputs[0].device
    if device.type == "cuda":
        # An upper bound: all intermediate values at once.
        results = [node.meta.get("val") for node in step.graph.nodes if node.op == "call_function"]
        needed = state + sum(_bytes(value) for value in results if isinstance(value, Tensor))
        needed += unfolded_bytes(step) if unfold else 0
        free, _ = torch.cuda.mem_get_info(device)
        return max(int(FREE_SHARE * free / needed), 1)
    num_params = sum(p.numel() for p in model.parameters())
    # Clients of a stack draw together, so their numbers are not those of single clients.
    if convolves(step) or draws(step) or num_params * num_examples > CPU_PRODUCTS:
        return 1
    return max(min(CPU_BYTES // max(state, 1), CPU_WIDTH), 1)


def _bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()


def convolves(step: GraphModule) -> bool:
    """Whether a traced step has convolutions."""
    return any(node.target is aten.convolution.default for node in step.graph.nodes)


def draws(step: GraphModule) -> bool:
    """Whether a traced step draws random numbers."""
    return any(map(is_random, step.graph.nodes))


def unfolded_bytes(step: GraphModule) -> int:
    """Size of the windows of all convolutions, of one client: forward, and twice backward."""
    total = 0
    for node in step.graph.nodes:
        if node.target is aten.convolution.default:
            args: Any = node.args
            x, w, out = args[0].meta["val"], args[1].meta["val"], node.meta["val"]
            window = w[0, 0].numel()
            # Windows of images, forward and backward; windows of the output's gradient.
            total += 2 * out[:, 0].numel() * x.shape[1] * window * x.element_size()
            total += x[:, 0].numel() * out.shape[1] * window * x.element_size()
    return total
