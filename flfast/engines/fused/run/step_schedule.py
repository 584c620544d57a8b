"""How local epochs become calls of programs: which rows, how many steps, of what size."""

from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import NamedTuple

from flfast.datamodules.batches import LocalEpoch, local_epoch
from flfast.plan import Batching

CHUNK_EXAMPLES = 512
"""Rows made ready at once: few enough to stay in a core's cache, enough to amortise the call."""


class Call(NamedTuple):
    """Equal steps over consecutive rows.

    Attributes:
        kind: which function of `LocalStep`: `whole`, `accumulate` or `apply`.
        offset: first row, in the chunk.
        num: steps.
        size: rows a step is compiled for.
        real: rows that count; the rest are padding.
        share: of the local step, 1 unless micro-batches share it.
    """

    kind: str
    offset: int
    num: int
    size: int
    real: int
    share: float


class Chunk(NamedTuple):
    """Rows that are made ready together.

    Attributes:
        start: first position in the order of the epochs, one behind the other.
        stop: behind the last.
        padding: rows to add behind, with any example's values.
        calls: in their order.
    """

    start: int
    stop: int
    padding: int
    calls: tuple[Call, ...]

    @property
    def num_steps(self) -> int:
        """Local steps that end in this chunk."""
        return sum(call.num for call in self.calls if call.kind != "accumulate")


def epoch_chunks(
    num_examples: int,
    batching: Batching,
    *,
    num_steps: int | None,
    exact: bool,
) -> tuple[Chunk, ...]:
    """The calls of a local epoch.

    Args:
        num_examples: of the client, >= 1.
        batching: how they become local steps.
        num_steps: at most so many; None is all.
        exact: every size as it is; otherwise odd sizes are padded by less than a quarter,
            so that few programs are compiled.
    """
    # A limit of 1 is one batch, 1.0 is all of them.
    kind = isinstance(batching.limit, int)
    return _epoch_chunks(num_examples, batching, kind, num_steps=num_steps, exact=exact)


@lru_cache(maxsize=4096)
def _epoch_chunks(
    num_examples: int,
    batching: Batching,
    _: Hashable,
    *,
    num_steps: int | None,
    exact: bool,
) -> tuple[Chunk, ...]:
    epoch = local_epoch(num_examples, batching)
    steps = list(_steps(epoch))[:num_steps]
    parts = [part for step in steps for part in step]
    largest = max((stop - start for start, stop, _ in parts), default=1)
    chunks: list[Chunk] = []
    pending: list[tuple[int, Call]] = []

    def flush() -> None:
        if pending:
            chunks.append(_chunk(pending))
            pending.clear()

    for step in steps:
        for start, stop, share in step:
            kind = "whole" if epoch.accumulate == 1 else "accumulate"
            size = stop - start if exact else bucket(stop - start, batching)
            if pending and stop - pending[0][0] > max(CHUNK_EXAMPLES, largest):
                flush()
            pending.append((start, Call(kind, 0, 1, size, stop - start, share)))
        if epoch.accumulate > 1:
            pending.append((step[-1][1], Call("apply", 0, 1, 0, 0, 1.0)))
    flush()
    return tuple(chunks)


def _steps(epoch: LocalEpoch) -> Iterator[list[tuple[int, int, float]]]:
    """Micro-batches (start, stop, share) by local step."""
    parts = [
        (start, stop, scale / epoch.accumulate)
        for (start, stop), scale in zip(epoch.bounds, epoch.scales, strict=True)
    ]
    for first in range(0, len(parts), epoch.accumulate):
        yield parts[first : first + epoch.accumulate]


def bucket(size: int, batching: Batching) -> int:
    """The size itself for whole batches, otherwise three significant bits, rounded up."""
    if size in {batching.batch_size, batching.micro_batch}:
        return size
    unit = 1 << max((size - 1).bit_length() - 3, 0)
    return -(-size // unit) * unit


def _chunk(pending: list[tuple[int, Call]]) -> Chunk:
    first = pending[0][0]
    calls: list[Call] = []
    for start, call in pending:
        call = call._replace(offset=start - first)
        last = calls[-1] if calls else call
        alike = call._replace(offset=0, num=0) == last._replace(offset=0, num=0)
        if calls and alike and call.kind == "whole" and call.size == call.real:
            calls[-1] = last._replace(num=last.num + 1)
        else:
            calls.append(call)
    stop = max(start + call.real for start, call in pending)
    reach = max(start + call.size for start, call in pending)
    return Chunk(first, stop, reach - stop, tuple(calls))
