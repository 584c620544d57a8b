"""From a client's examples to the batches of a local epoch."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from torch import Tensor

from flfast.plan import Batching

Fetch = Callable[[Sequence[np.ndarray]], Iterator[tuple[Tensor, Tensor]]]


class Batch(NamedTuple):
    """What a training or evaluation step reads. B batch.

    Attributes:
        inputs: [B, ...].
        targets: int64 [B].
        scale: factor of the mean loss that makes micro-batches add up to their local step.
        share: factor of the loss of a rank's part that makes the mean over ranks that of the
            batch; 0 for an example that stands in for an empty part.
        owners: (client, number) of consecutive examples that clients' own models predict; empty
            where the server's does.
    """

    inputs: Tensor
    targets: Tensor
    scale: float = 1.0
    share: float = 1.0
    owners: tuple[tuple[int, int], ...] = ()


class LocalEpoch(NamedTuple):
    """The batches of one pass over a client's examples. M examples after drop or pad.

    Attributes:
        num_examples: M; positions from the client's own number on repeat the beginning (pad).
        bounds: [start, stop) of every batch among the M positions.
        scales: `Batch.scale` of every batch.
        accumulate: batches in a full local step, Lightning's `accumulate_grad_batches`.
        num_steps: local steps.
    """

    num_examples: int
    bounds: list[tuple[int, int]]
    scales: list[float]
    accumulate: int
    num_steps: int


def local_epoch(num_examples: int, batching: Batching) -> LocalEpoch:
    """Batches of one local epoch of a client with `num_examples` >= 1 examples.

    A local step of S = batch_size * accumulate examples is cut into the fewest batches of at
    most `micro_batch` examples, equal to one. Lightning divides every loss by `accumulate`;
    scale = b * accumulate / S undoes that, exactly, for ragged last steps too.

    >>> local_epoch(5, Batching(batch_size=2)).bounds
    [(0, 2), (2, 4), (4, 5)]
    """
    # Told by its type: a limit of 1 is one batch, 1.0 is all of them.
    kind = isinstance(batching.limit, int)
    return _local_epoch(num_examples, batching, kind)


@lru_cache(maxsize=4096)
def _local_epoch(num_examples: int, batching: Batching, _: Hashable) -> LocalEpoch:
    batch = batching.batch_size if batching.batch_size > 0 else num_examples
    step = batch * batching.accumulate if batching.batch_size > 0 else batch
    micro = min(batch, batching.micro_batch or batch)
    accumulate = -(-step // micro)
    kept = _kept(num_examples, step, micro, batching)
    if batching.limit != 1.0 or isinstance(batching.limit, int):
        kept = min(kept, num_limited(num_examples, batch, batching.limit))
    bounds, scales = [], []
    starts = range(0, kept, step)
    for start in starts:
        size = min(step, kept - start)
        cuts = _cuts(size, micro)
        for low, high in pairwise(cuts):
            bounds.append((start + low, start + high))
            scales.append((high - low) * accumulate / size)
    return LocalEpoch(kept, bounds, scales, accumulate, len(starts))


def _cuts(size: int, micro: int) -> list[int]:
    num_batches = -(-size // micro)
    return [size * i // num_batches for i in range(num_batches + 1)]


def _kept(num_examples: int, step: int, micro: int, batching: Batching) -> int:
    rest = num_examples % step
    if rest and batching.last_batch == "pad":
        return num_examples - rest + step
    if rest and num_examples > step and batching.last_batch == "drop":
        return num_examples - rest
    # A client smaller than one step trains on what it has: zero steps would be silent.
    single = batching.drop_single and rest and num_examples > 1
    has_single = single and min(b - a for a, b in pairwise(_cuts(rest, micro))) == 1
    return num_examples - 1 if has_single else num_examples


def num_limited(num_examples: int, batch_size: int, limit: float | int) -> int:
    """Examples in the batches that a limit admits, as Lightning's `limit_train_batches` counts.

    Args:
        num_examples: without the limit.
        batch_size: >= 1.
        limit: a share of the batches, rounded down but at least one, or a number of batches.
    """
    num_batches = limit
    if isinstance(limit, float):
        num_batches = max(1, int(limit * -(-num_examples // batch_size)))
    return int(num_batches) * batch_size


class RankShare(NamedTuple):
    """Which part of every batch, or of a pass, is this rank's; by default all of it.

    Attributes:
        rank: of this process.
        size: ranks that share the work.
    """

    rank: int = 0
    size: int = 1

    def slice(self, num: int) -> slice:
        """This rank's part of `num` things in a row; sizes differ by at most one."""
        return slice(num * self.rank // self.size, num * (self.rank + 1) // self.size)

    def of(self, bounds: tuple[int, int]) -> tuple[int, int, float]:
        """(start, stop, factor) of this rank's part of a batch.

        Ranks average their gradients; the factor makes that the mean over the batch, however
        unevenly it was cut. A rank left without examples computes one at factor 0, since every
        rank must join every gradient exchange.
        """
        start, stop = bounds
        size = stop - start
        mine = self.slice(size)
        num = mine.stop - mine.start
        if not num:
            return start, start + 1, 0.0
        return start + mine.start, start + mine.stop, num * self.size / size


WHOLE = RankShare()


class TrainLoader:
    """One client's training batches; every iteration is the next local epoch, shuffled anew."""

    def __init__(
        self,
        fetch: Fetch,
        indices: np.ndarray,
        epoch: LocalEpoch,
        shuffle: Callable[[int, int], np.ndarray],
        share: RankShare = WHOLE,
    ) -> None:
        self.fetch = fetch
        self.indices = indices
        self.epoch = epoch
        self.shuffle = shuffle
        self.share = share
        self.num_iterated = 0

    def __len__(self) -> int:
        return len(self.epoch.bounds)

    def next_order(self) -> np.ndarray:
        """Example numbers of the next local epoch, int64 [M]."""
        order = self.indices[self.shuffle(self.num_iterated, len(self.indices))]
        self.num_iterated += 1
        return np.resize(order, self.epoch.num_examples)

    def __iter__(self) -> Iterator[Batch]:
        # A generator counts when its first batch is asked for, not when Lightning creates it.
        order = self.next_order()
        parts = [self.share.of(bounds) for bounds in self.epoch.bounds]
        batches = [order[start:stop] for start, stop, _ in parts]
        fetched = zip(self.fetch(batches), parts, self.epoch.scales, strict=True)
        for (inputs, targets), (_, _, factor), scale in fetched:
            yield Batch(inputs, targets, scale, factor)


class EvalLoader:
    """Examples in their order; of each batch this rank's part.

    Args:
        fetch: reads examples.
        indices: example numbers, int64 [M].
        batch_size: at most so many, >= 1.
        owner: whose own model predicts each of them, int64 [M], those of a client in a row; None
            is the server's.
        share: which part of every batch is this rank's; if not all, no batch spans two clients.
    """

    def __init__(
        self,
        fetch: Fetch,
        indices: np.ndarray,
        *,
        batch_size: int,
        owner: np.ndarray | None = None,
        share: RankShare = WHOLE,
    ) -> None:
        self.fetch, self.indices, self.share = fetch, indices, share
        cuts = [*range(0, len(indices), batch_size), len(indices)] if len(indices) else []
        self._bounds = list(pairwise(cuts))
        self._owners: list[tuple[tuple[int, int], ...]] = [()] * len(self._bounds)
        if owner is not None:
            most = batch_size if share.size == 1 else 0
            packed = list(_packed(_pieces(owner, batch_size), most))
            self._bounds = [(batch[0][1], batch[-1][2]) for batch in packed]
            self._owners = [
                tuple((client, stop - start) for client, start, stop in batch) for batch in packed
            ]

    def __len__(self) -> int:
        return len(self._bounds)

    def __iter__(self) -> Iterator[Batch]:
        parts = [self.share.of(bounds) for bounds in self._bounds]
        batches = [self.indices[start:stop] for start, stop, _ in parts]
        fetched = zip(self.fetch(batches), parts, self._owners, strict=True)
        for (inputs, targets), (_, _, factor), owners in fetched:
            if self.share.size > 1:
                owners = tuple((client, len(targets)) for client, _ in owners)
            yield Batch(inputs, targets, share=factor, owners=owners)

    def bounds(self) -> list[tuple[int, int]]:
        """[start, stop) of every batch, all ranks' parts together."""
        return self._bounds


def _pieces(owner: np.ndarray, batch_size: int) -> Iterator[tuple[int, int, int]]:
    """(client, start, stop) of at most `batch_size` examples in a row."""
    starts = np.flatnonzero(np.diff(owner, prepend=-1)).tolist()
    for first, end in pairwise([*starts, len(owner)]):
        for start in range(first, end, batch_size):
            yield int(owner[first]), start, min(start + batch_size, end)


def _packed(
    pieces: Iterator[tuple[int, int, int]], most: int
) -> Iterator[list[tuple[int, int, int]]]:
    """Pieces in a row that have at most `most` examples together, or one piece."""
    batch: list[tuple[int, int, int]] = []
    for piece in pieces:
        if batch and piece[2] - batch[0][1] > most:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch
