"""Reduces a cohort's uploads to one: by a running weighted mean, or from all uploads at once.

`engines/delivery.py` adds each upload that arrives through the channel. After local training
`engines/engine.py` combines the reductions of all ranks into the mean for the server's step.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from flfast.aggregations.aggregation import Aggregation
from flfast.distributed.world import World, common_spec, reduce_mean
from flfast.state.stack import check_same_leaves
from flfast.state.tree import Tree, WeightedMean
from flfast.state.vector import from_vectors, to_vectors, vector_sizes


class Reduced(NamedTuple):
    """The result of a reduction.

    Attributes:
        mean: of the uploads; None if too few arrived.
        left_out: clients whose uploads the aggregation did not select.
        shortage: the reason if some, but too few uploads arrived; otherwise empty.
    """

    mean: Tree | None
    left_out: frozenset[int] = frozenset()
    shortage: str = ""


class Reduction(Protocol):
    """Collects the uploads of this rank's clients, and combines them with other ranks'."""

    def add(self, client_id: int, upload: Tree, weight: float) -> None:
        """Add the upload of a client of the cohort.

        Raises:
            ValueError: if its leaves differ from those of earlier uploads.
        """

    def combine(self, world: World) -> Reduced:
        """Combine all ranks' uploads; every rank gets the same result. Collective."""


def reduction_for(aggregation: Aggregation, cohort: Sequence[int]) -> Reduction:
    """The reduction that an aggregation rule needs."""
    return MeanReduction() if aggregation.combine is None else RowReduction(aggregation, cohort)


class MeanReduction:
    """The weighted mean, in the memory of one upload. See `Reduction`."""

    def __init__(self) -> None:
        self._mean = WeightedMean()

    def add(self, client_id: int, upload: Tree, weight: float) -> None:
        """See `Reduction`."""
        if self._mean.total is not None:
            check_same_leaves(upload, self._mean.like, f"client {client_id}")
        self._mean.add(upload, weight)

    def combine(self, world: World) -> Reduced:
        """See `Reduction`."""
        mean = reduce_mean(world, self._mean)
        return Reduced(mean.result() if mean.weight else None)


class RowReduction:
    """Any aggregation rule; every rank holds one row per client of the cohort. See `Reduction`.

    Rows are in the order of the cohort, so that every number of ranks gives the same result.
    Counts, such as local steps and BatchNorm's batches, are no part of the rows. Their result is
    the median over the uploads that the rule selected (the lower of the two middle values).

    Args:
        aggregation: combines the rows.
        cohort: K clients.
    """

    def __init__(self, aggregation: Aggregation, cohort: Sequence[int]) -> None:
        assert aggregation.combine is not None
        self._name, self._combine = aggregation.name, aggregation.combine
        self._min_uploads, self._reason = aggregation.min_uploads, aggregation.reason
        self._cohort = torch.tensor(list(cohort), dtype=torch.int64)
        self._place = {client_id: place for place, client_id in enumerate(cohort)}
        self._present = torch.zeros(len(cohort), dtype=torch.int64)
        self._weights = torch.zeros(len(cohort), dtype=torch.float64)
        self._like: Tree | None = None

    def add(self, client_id: int, upload: Tree, weight: float) -> None:
        """See `Reduction`."""
        self._allocate(upload)
        check_same_leaves(upload, self._like or {}, f"client {client_id}")
        place, (learned, counted) = self._place[client_id], to_vectors(upload)
        self._learned[place], self._counted[place] = learned, counted
        self._present[place], self._weights[place] = 1, weight

    def _allocate(self, like: Tree) -> None:
        """Allocate the rows, unless an earlier upload did."""
        if self._like is None:
            self._like = like
            num, sizes = len(self._cohort), vector_sizes(like)
            self._learned = torch.zeros(num, sizes.learned, dtype=sizes.dtype)
            self._counted = torch.zeros(num, sizes.counted, dtype=torch.float64)

    def combine(self, world: World) -> Reduced:
        """See `Reduction`."""
        like = common_spec(world, self._like)
        if like is None:
            return Reduced(None)
        self._allocate(like)
        if world.size > 1:
            # Each row is zero on all ranks but one, so the sum is an exact copy.
            for part in (self._present, self._weights, self._learned, self._counted):
                dist.all_reduce(part)
        present = self._present.bool()
        num = int(present.sum())
        if num < self._min_uploads:
            return Reduced(
                None, shortage=f"{self._reason} uploads for {self._name}, {num} arrived"
            )
        learned, counted = (_rows(part, present) for part in (self._learned, self._counted))
        vector, used = self._combine(learned, self._weights[present])
        counters = counted[used].median(dim=0).values if counted.shape[1] else counted[0]
        left_out = frozenset(self._cohort[present][~used].tolist())
        return Reduced(from_vectors(vector, counters, like), left_out)


def _rows(part: Tensor, present: Tensor) -> Tensor:
    """The rows that are present; avoids a copy where all are."""
    return part if bool(present.all()) else part[present]
