"""Schedules a client's local epoch: which rows to read, and how many steps of which size to run.

`one_client.py` asks once per stage whether a batch may be padded with examples of weight zero, so
that batches of similar sizes share one program. With the schedule it then reads each chunk's rows
(`example_rows.py`) and runs the chunk's spans.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.batches import LocalEpoch, local_epoch
from flfast.engines.fused.graph.local_step import LocalStep
from flfast.state.plan import Batching
from flfast.state.tree import Tree, leaves, tree_map

CHUNK_EXAMPLES = 512
"""Rows read at once on the CPU: few enough for a core's cache, enough to amortise the gather."""


class Span(NamedTuple):
    """Consecutive steps of equal size.

    Attributes:
        kind: method of `LocalStep`: `whole`, `accumulate` or `apply`.
        offset: first row, counted from the chunk's first.
        num: number of steps.
        size: rows per step, padding included; 0 for `apply`, which reads none.
        real: rows per step without padding.
        weight: weight of a micro-batch in its local step; 1 for a whole batch.
    """

    kind: str
    offset: int
    num: int
    size: int
    real: int
    weight: float


class Chunk(NamedTuple):
    """Rows that are read together, and the spans over them.

    Attributes:
        start: first position in the epoch's order of examples.
        stop: one past the last position.
        padding: number of rows to append; their values do not matter.
        spans: in order.
    """

    start: int
    stop: int
    padding: int
    spans: tuple[Span, ...]

    @property
    def num_steps(self) -> int:
        """Local steps that end in this chunk."""
        return sum(span.num for span in self.spans if span.kind != "accumulate")


@lru_cache(maxsize=4096)
def epoch_chunks(
    num_examples: int,
    batching: Batching,
    *,
    num_steps: int | None,
    exact: bool,
    at_once: int = CHUNK_EXAMPLES,
) -> tuple[Chunk, ...]:
    """The chunks of a local epoch.

    Args:
        num_examples: number of examples of the client, >= 1.
        batching: how they become local steps.
        num_steps: largest number of local steps; None takes all.
        exact: keep every batch size; otherwise odd sizes are padded by less than a quarter, so
            that fewer programs are compiled.
        at_once: rows of a chunk, if its steps have no more.
    """
    epoch = local_epoch(num_examples, batching)
    steps = list(_steps(epoch))[:num_steps]
    parts = [part for step in steps for part in step]
    largest = max((stop - start for start, stop, _ in parts), default=1)
    chunks: list[Chunk] = []
    pending: list[tuple[int, Span]] = []

    def flush() -> None:
        if pending:
            chunks.append(_chunk(pending))
            pending.clear()

    for step in steps:
        for start, stop, share in step:
            kind = "whole" if epoch.accumulate == 1 else "accumulate"
            size = stop - start if exact else padded_size(stop - start, batching)
            if pending and stop - pending[0][0] > max(at_once, largest):
                flush()
            pending.append((start, Span(kind, 0, 1, size, stop - start, share)))
        if epoch.accumulate > 1:
            pending.append((step[-1][1], Span("apply", 0, 1, 0, 0, 1.0)))
    flush()
    return tuple(chunks)


def _steps(epoch: LocalEpoch) -> Iterator[list[tuple[int, int, float]]]:
    """The micro-batches (start, stop, share) of every local step."""
    parts = [
        (start, stop, scale / epoch.accumulate)
        for (start, stop), scale in zip(epoch.bounds, epoch.scales, strict=True)
    ]
    for first in range(0, len(parts), epoch.accumulate):
        yield parts[first : first + epoch.accumulate]


def weights_by_count(chunks: Sequence[Chunk], counts: np.ndarray) -> tuple[Chunk, ...]:
    """The same chunks, with the weights of micro-batches where examples count differently.

    `counts` are the targets that count of each example, in the epoch's order, [M].
    """
    sums: list[int] = []  # of the micro-batches of the current step
    totals: list[int] = []  # of every step
    sizes: list[int] = []
    for chunk in chunks:
        for span in chunk.spans:
            if span.kind == "accumulate":
                start = chunk.start + span.offset
                sums.append(int(counts[start : start + span.real].sum()))
            elif span.kind == "apply":
                sizes += sums
                totals += [sum(sums)] * len(sums)
                sums.clear()
    weights = iter(size / total for size, total in zip(sizes, totals, strict=True))
    return tuple(
        chunk._replace(
            spans=tuple(
                span._replace(weight=next(weights)) if span.kind == "accumulate" else span
                for span in chunk.spans
            )
        )
        for chunk in chunks
    )


def padded_size(size: int, batching: Batching) -> int:
    """The padded size of a batch: a full batch's own size, otherwise rounded up to three bits.

    Three significant bits pad by less than a quarter, and give few sizes to compile for.
    """
    if size in {batching.batch_size, batching.micro_batch}:
        return size
    unit = 1 << max((size - 1).bit_length() - 3, 0)
    return -(-size // unit) * unit


def _chunk(pending: list[tuple[int, Span]]) -> Chunk:
    """One chunk of all pending spans; equal consecutive steps become one span."""
    begin = pending[0][0]
    spans: list[Span] = []
    for start, span in pending:
        span = span._replace(offset=start - begin)
        last = spans[-1] if spans else span
        equal = span._replace(offset=0, num=0) == last._replace(offset=0, num=0)
        if spans and equal and span.kind == "whole" and span.size == span.real:
            spans[-1] = last._replace(num=last.num + 1)
        else:
            spans.append(span)
    stop = max(start + span.real for start, span in pending)
    padded_stop = max(start + span.size for start, span in pending)
    return Chunk(begin, stop, padded_stop - stop, tuple(spans))


def padding_changes_results(
    step: LocalStep, trees: Sequence[Tree], rows: Sequence[Tensor]
) -> bool:
    """Whether one more example of weight zero changes a gradient, a buffer or the loss.

    It does where an example's output depends on the rest of its batch, as with BatchNorm. It also
    does where random numbers depend on the batch size, as with dropout.

    Args:
        step: the local step.
        trees: state, context and settings; they are not changed.
        rows: inputs and targets of at least two examples. The last one is the padding. With fewer
            examples the answer is True.
    """
    num = len(rows[0]) - 1
    if num < 1:
        return True
    with torch.inference_mode(mode=False):
        context, settings = (tree_map(_for_autograd, tree) for tree in trees[1:])
        params = tree_map(torch.clone, trees[0]["params"])

        def results(params: Tree, size: int) -> list[Tensor]:
            given = [{**trees[0], "params": params}, context, settings]
            return _step_results(step, given, rows, num=num, size=size)

        plain = results(params, num)
        # A forward pass may change parameters, as an embedding's `max_norm` does. If none does,
        # a second copy of a large model is saved.
        changes = any(leaf._version for leaf in params.values())  # noqa: SLF001 - no public name
        del params
        kept = torch.clone if changes else _for_autograd
        padded = results(tree_map(kept, trees[0]["params"]), num + 1)
    return not all(map(nearly_equal, plain, padded))


def _for_autograd(leaf: Tensor) -> Tensor:
    """The tensor; a copy if autograd refuses it, because it was made in inference mode."""
    return leaf.clone() if leaf.is_inference() else leaf


def _step_results(
    step: LocalStep, trees: Sequence[Tree], rows: Sequence[Tensor], *, num: int, size: int
) -> list[Tensor]:
    """Loss, gradients and buffers after a batch of `num` examples padded to `size`."""
    state, context, settings = trees
    own = {name: state[name] for name in state if name not in {"params", "optimizer"}}
    state = {**tree_map(torch.clone, own), "params": state["params"]}
    weights = torch.zeros(size, dtype=state["loss"].dtype, device=state["loss"].device)
    weights[:num] = 1 / num
    count, share = weights.new_tensor([num, 1.0]).unbind()
    inputs, targets = (row[:size].clone() for row in rows)
    batch = {
        "inputs": inputs,
        "targets": targets,
        "weights": weights,
        "num": count,
        "share": share,
    }
    device = weights.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        grads = step.gradients(state, context, settings, batch)
    return [state["loss"], *grads.values(), *leaves(state["buffers"])]


def nearly_equal(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors differ by rounding only; integers must be equal."""
    if not left.is_floating_point():
        return torch.equal(left, right)
    rounding = max(0.01, 8 * torch.finfo(left.dtype).eps)
    return bool((right - left).abs().max() <= rounding * left.abs().max())
