"""A cohort's uploads on their way to one: added up, or collected where an aggregation asks."""

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
    """What a cohort's uploads came to.

    Attributes:
        mean: None if there were too few of them.
        left_out: clients whose uploads the aggregation did not take.
        shortage: what is missing where there were some, but too few.
    """

    mean: Tree | None
    left_out: frozenset[int] = frozenset()
    shortage: str = ""


class Reduction(Protocol):
    """Reduction of this rank, to be joined with those of the others."""

    def add(self, client_id: int, upload: Tree, weight: float) -> None:
        """Take an upload of a client of the cohort.

        Raises:
            ValueError: if it has other leaves than the uploads before it.
        """

    def combine(self, world: World) -> Reduced:
        """All ranks' uploads in one; the same on every rank; collective."""


def reduction_for(aggregation: Aggregation, cohort: Sequence[int]) -> Reduction:
    """Where a cohort's uploads go."""
    return MeanReduction() if aggregation.combine is None else RowReduction(aggregation, cohort)


class MeanReduction:
    """The weighted mean; holds one sum. See `Reduction`."""

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
    """Any aggregation; every rank holds a row for each of the cohort. See `Reduction`.

    Rows lie in the order of the cohort, whoever trained them, so that every world gives the same
    numbers. What was counted, such as steps and BatchNorm's batches, is no part of the rows: of
    those uploads that were used it takes the median, the lower one of two.

    Args:
        aggregation: what becomes of the rows.
        cohort: K clients.
    """

    def __init__(self, aggregation: Aggregation, cohort: Sequence[int]) -> None:
        assert aggregation.combine is not None
        self._name, self._combine = aggregation.name, aggregation.combine
        self._fewest, self._reason = aggregation.min_uploads, aggregation.reason
        self._cohort = torch.tensor(list(cohort), dtype=torch.int64)
        self._place = {client_id: place for place, client_id in enumerate(cohort)}
        self._present = torch.zeros(len(cohort), dtype=torch.int64)
        self._weights = torch.zeros(len(cohort), dtype=torch.float64)
        self._like: Tree | None = None

    def add(self, client_id: int, upload: Tree, weight: float) -> None:
        """See `Reduction`."""
        self._join(upload)
        check_same_leaves(upload, self._like or {}, f"client {client_id}")
        place, (learned, counted) = self._place[client_id], to_vectors(upload)
        self._learned[place], self._counted[place] = learned, counted
        self._present[place], self._weights[place] = 1, weight

    def _join(self, like: Tree) -> None:
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
        self._join(like)
        if world.size > 1:
            # Only one rank has a row, so that a sum with zeros is a copy, to the last bit.
            for part in (self._present, self._weights, self._learned, self._counted):
                dist.all_reduce(part)
        present = self._present.bool()
        num = int(present.sum())
        if num < self._fewest:
            return Reduced(
                None, shortage=f"{self._reason} uploads for {self._name}, {num} arrived"
            )
        learned, counted = (_rows(part, present) for part in (self._learned, self._counted))
        vector, used = self._combine(learned, self._weights[present])
        counters = counted[used].median(dim=0).values if counted.shape[1] else counted[0]
        left_out = frozenset(self._cohort[present][~used].tolist())
        return Reduced(from_vectors(vector, counters, like), left_out)


def _rows(part: Tensor, present: Tensor) -> Tensor:
    return part if bool(present.all()) else part[present]
