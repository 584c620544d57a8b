"""Divides a client's examples into the batches of a local epoch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_map_only

from flfast.state.plan import Batching

Fetch = Callable[[Sequence[np.ndarray]], Iterator[tuple[Any, Tensor]]]


class Batch(NamedTuple):
    """A batch of training or evaluation. B batch.

    Attributes:
        inputs: [B, ...]; with a user's LightningModule its own batch, of any structure.
        targets: [B, ...]; see `Examples`.
        scale: factor of the mean loss with which micro-batches add up to their local step.
        rank_factor: factor of the loss with which the mean over ranks is the mean over the batch;
            0 for a placeholder example on a rank whose part is empty.
        owners: (client, number of examples) of consecutive examples that are predicted with the
            client's own model; empty if the server's model predicts.
    """

    inputs: Any
    targets: Tensor
    scale: float = 1.0
    rank_factor: float = 1.0
    owners: tuple[tuple[int, int], ...] = ()

    def part(self, places: Tensor | slice) -> "Batch":
        """Some of the examples, by their places; of any structure of tensors [B, ...]."""
        inputs = tree_map_only(Tensor, lambda leaf: leaf[places], self.inputs)
        return self._replace(inputs=inputs, targets=self.targets[places])


class LocalEpoch(NamedTuple):
    """The batches of one pass over a client's examples. M examples after drop or pad.

    Attributes:
        num_examples: M; if padded, positions beyond the client's examples start over.
        bounds: [start, stop) of every batch, as positions below M.
        scales: `Batch.scale` of every batch.
        accumulate: batches of a full local step, Lightning's `accumulate_grad_batches`.
        num_steps: number of local steps.
    """

    num_examples: int
    bounds: list[tuple[int, int]]
    scales: list[float]
    accumulate: int
    num_steps: int


def subset_size(num_examples: int, fraction: float) -> int:
    """Examples of a random fraction of them, at least one."""
    return max(1, round(fraction * num_examples))


@lru_cache(maxsize=4096)
def local_epoch(num_examples: int, batching: Batching) -> LocalEpoch:
    """Batches of one local epoch of a client with `num_examples` >= 1 examples.

    A local step of S = batch_size * accumulate examples is divided into as few batches as
    `micro_batch` allows, whose sizes differ by at most one. Lightning divides the loss of a batch
    of b examples by `accumulate`. The scale b * accumulate / S corrects that exactly, also for
    the last, partial step.

    >>> local_epoch(5, Batching(batch_size=2)).bounds
    [(0, 2), (2, 4), (4, 5)]
    """
    batch = batching.batch_size if batching.batch_size > 0 else num_examples
    step = batch * batching.accumulate if batching.batch_size > 0 else batch
    micro = min(batch, batching.micro_batch or batch)
    accumulate = -(-step // micro)
    kept = _num_kept(num_examples, step, micro, batching)
    if batching.limit is not None:
        kept = min(kept, num_limited(num_examples, batch, batching.limit))
    bounds, scales = [], []
    starts = range(0, kept, step)
    for start in starts:
        size = min(step, kept - start)
        for low, high in pairwise(_even_cuts(size, micro)):
            bounds.append((start + low, start + high))
            scales.append((high - low) * accumulate / size)
    return LocalEpoch(kept, bounds, scales, accumulate, len(starts))


def _even_cuts(size: int, micro: int) -> list[int]:
    num_batches = -(-size // micro)
    return [size * i // num_batches for i in range(num_batches + 1)]


def _num_kept(num_examples: int, step: int, micro: int, batching: Batching) -> int:
    rest = num_examples % step
    if rest and batching.last_batch == "pad":
        return num_examples - rest + step
    if rest and num_examples > step and batching.last_batch == "drop":
        return num_examples - rest
    # A client with less than one step keeps all examples, or it would silently not train.
    single = batching.drop_single and rest and num_examples > 1
    has_single = single and min(b - a for a, b in pairwise(_even_cuts(rest, micro))) == 1
    return num_examples - 1 if has_single else num_examples


def num_limited(num_examples: int, batch_size: int, limit: float | int) -> int:
    """Upper bound of examples with a limit, counted like Lightning's `limit_train_batches`.

    A limit is a share of the batches (float, rounded down but at least one), or their number
    (int).
    """
    num_batches = limit
    if isinstance(limit, float):
        num_batches = max(1, int(limit * -(-num_examples // batch_size)))
    return int(num_batches) * batch_size


def weighted_scales(epoch: LocalEpoch, counts: np.ndarray) -> list[float]:
    """`Batch.scale` of every batch where `counts` [M] targets of each example count, in order."""
    sizes = [int(counts[start:stop].sum()) for start, stop in epoch.bounds]
    width = epoch.accumulate
    steps = [sum(sizes[first : first + width]) for first in range(0, len(sizes), width)]
    return [size * width / steps[i // width] for i, size in enumerate(sizes)]


class RankShare(NamedTuple):
    """This rank's part of a batch or a pass, which `size` ranks share; by default all of it."""

    rank: int = 0
    size: int = 1

    def slice(self, num: int) -> slice:
        """This rank's part of `num` consecutive items; sizes differ by at most one."""
        return slice(num * self.rank // self.size, num * (self.rank + 1) // self.size)

    def batch_part(
        self, bounds: tuple[int, int], counts: np.ndarray | None = None
    ) -> tuple[int, int, float]:
        """(start, stop, factor) of this rank's part of a batch.

        Ranks average their gradients. With the factor, that is the mean over the batch even if
        parts differ in size. A rank without examples computes one at factor 0, since every rank
        must take part in every all-reduce. `counts` are targets that count of each example, in
        order; None: all count equally.
        """
        start, stop = bounds
        size = stop - start
        part = self.slice(size)
        low, high = start + part.start, start + part.stop
        if low == high:
            return start, start + 1, 0.0
        fraction = (high - low) / size
        if counts is not None:
            fraction = float(counts[low:high].sum() / counts[start:stop].sum())
        return low, high, fraction * self.size


WHOLE = RankShare()


@dataclass(eq=False)
class TrainLoader:
    """Training batches of one client; each iteration is the next local epoch, newly shuffled.

    Attributes:
        indices: the client's examples, int64 [n].
        shuffle: (epoch, n) -> permutation of n.
        counts: targets of each of all examples that count, int64 [N]; None: all count equally.
        num_epochs: local epochs that have begun.
    """

    fetch: Fetch
    indices: np.ndarray
    epoch: LocalEpoch
    shuffle: Callable[[int, int], np.ndarray]
    rank_share: RankShare = WHOLE
    counts: np.ndarray | None = None
    num_epochs: int = 0

    def __len__(self) -> int:
        return len(self.epoch.bounds)

    def next_order(self) -> np.ndarray:
        """Examples of the next local epoch, in order, int64 [M]."""
        order = self.indices[self.shuffle(self.num_epochs, len(self.indices))]
        self.num_epochs += 1
        num = self.epoch.num_examples
        return order if num == len(order) else np.resize(order, num)

    def __iter__(self) -> Iterator[Batch]:
        # A generator: Lightning creates iterators that it never uses, which must not count.
        order = self.next_order()
        counts = None if self.counts is None else self.counts[order]
        scales = self.epoch.scales if counts is None else weighted_scales(self.epoch, counts)
        parts = [self.rank_share.batch_part(bounds, counts) for bounds in self.epoch.bounds]
        batches = [order[start:stop] for start, stop, _ in parts]
        fetched = zip(self.fetch(batches), parts, scales, strict=True)
        for (inputs, targets), (_, _, factor), scale in fetched:
            yield Batch(inputs, targets, scale, factor)


class EvalLoader:
    """Evaluation batches of examples, int64 [M], in order; at most `batch_size` >= 1 in each.

    `owner` is the client whose own model predicts each example, int64 [M], grouped by client; None
    for the server's model. `rank_share` is this rank's part of every batch. If it is not all of
    it, no batch has examples of two clients.
    """

    def __init__(
        self,
        fetch: Fetch,
        indices: np.ndarray,
        *,
        batch_size: int,
        owner: np.ndarray | None = None,
        rank_share: RankShare = WHOLE,
    ) -> None:
        self.fetch, self.indices, self.rank_share = fetch, indices, rank_share
        cuts = [*range(0, len(indices), batch_size), len(indices)] if len(indices) else []
        self._bounds = list(pairwise(cuts))
        self._owners: list[tuple[tuple[int, int], ...]] = [()] * len(self._bounds)
        if owner is not None:
            most = batch_size if rank_share.size == 1 else 0
            packed = list(_pack(_client_pieces(owner, batch_size), most))
            self._bounds = [(batch[0][1], batch[-1][2]) for batch in packed]
            self._owners = [
                tuple((client, stop - start) for client, start, stop in batch) for batch in packed
            ]

    def __len__(self) -> int:
        return len(self._bounds)

    def __iter__(self) -> Iterator[Batch]:
        parts = [self.rank_share.batch_part(bounds) for bounds in self._bounds]
        batches = [self.indices[start:stop] for start, stop, _ in parts]
        fetched = zip(self.fetch(batches), parts, self._owners, strict=True)
        for (inputs, targets), (_, _, factor), owners in fetched:
            if self.rank_share.size > 1:
                owners = tuple((client, len(targets)) for client, _ in owners)
            yield Batch(inputs, targets, rank_factor=factor, owners=owners)

    def bounds(self) -> list[tuple[int, int]]:
        """[start, stop) of every batch, before it is divided over ranks."""
        return self._bounds


def _client_pieces(owner: np.ndarray, batch_size: int) -> Iterator[tuple[int, int, int]]:
    """(client, start, stop) of consecutive examples of one client, at most `batch_size`."""
    starts = np.flatnonzero(np.diff(owner, prepend=-1)).tolist()
    for first, end in pairwise([*starts, len(owner)]):
        for start in range(first, end, batch_size):
            yield int(owner[first]), start, min(start + batch_size, end)


def _pack(
    pieces: Iterator[tuple[int, int, int]], most: int
) -> Iterator[list[tuple[int, int, int]]]:
    """Batches of consecutive pieces: as many as have at most `most` examples, but at least one."""
    batch: list[tuple[int, int, int]] = []
    for piece in pieces:
        if batch and piece[2] - batch[0][1] > most:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch
