"""Features of frozen layers: computed once per client and stage, instead of in every pass."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from flfast.engines.fused.graph.programs import Bound, FrozenSplit
from flfast.engines.fused.run.example_rows import ExampleFeed
from flfast.engines.fused.run.padding import nearly_equal
from flfast.engines.fused.run.step_schedule import CHUNK_EXAMPLES, Call, Chunk
from flfast.state.transfer import to_device
from flfast.state.tree import Tree

FEATURE_BYTES = 2**28
"""Of a client's features in memory; beyond, they are computed anew in every pass."""

Steps = Callable[[Call], Bound]


class FeatureFeed:
    """Features, beside what steps still read of the examples; see `Feed`.

    Args:
        examples: the client's.
        order: numbers of all of them.
        values: features, each [N, ...] in this order.
        splits: by batch size.
    """

    def __init__(
        self,
        examples: ExampleFeed,
        order: np.ndarray,
        values: list[Tensor],
        splits: dict[int, FrozenSplit],
    ) -> None:
        self._examples, self._values, self._splits = examples, values, splits
        self._places = np.argsort(order)
        self._sorted = order[self._places]
        self._reads = next(iter(splits.values())).reads

    def rows(self, order: np.ndarray, padding: int) -> Tree:
        """See `Feed`."""
        source = self._examples
        rows = (source.rows if "inputs" in self._reads else source.targets)(order, padding)
        places = self._places[np.searchsorted(self._sorted, order)]
        places = np.concatenate([places, places[:1].repeat(padding)])
        index = to_device(places, self._values[0].device)
        named = {name: rows[name] for name in self._reads}
        return named | {
            f"feature_{i}": value.index_select(0, index) for i, value in enumerate(self._values)
        }

    def step(self, bound: Bound, rows: Tree, *, num: int) -> None:
        """See `Feed`."""
        size = next(iter(rows.values())).shape[1]
        bound.go_on(self._splits[size], rows, num=num)


def splits_of(
    examples: ExampleFeed, steps: Steps, order: np.ndarray, chunks: Sequence[Chunk]
) -> dict[int, FrozenSplit] | None:
    """Steps in two by batch size; None where nothing is frozen that would take long to compute.

    Args:
        examples: a client's.
        steps: of a call.
        order: numbers of all of its examples.
        chunks: of a pass.
    """
    sample = examples.rows(order[:1], 0)
    splits: dict[int, FrozenSplit] = {}
    for size, call in _calls(chunks).items():
        rows = {name: row.new_empty((size, *row.shape[1:])) for name, row in sample.items()}
        split = steps(call).split(rows)
        if split is None:
            return None
        splits[size] = split
    return splits


def featured(
    examples: ExampleFeed,
    steps: Steps,
    order: np.ndarray,
    chunks: Sequence[Chunk],
    splits: dict[int, FrozenSplit],
) -> FeatureFeed | None:
    """A client's features; None where they would be too large, or differ with the batch size.

    Args:
        examples: the client's, not augmented.
        steps: of a call.
        order: numbers of all of its examples.
        chunks: of a pass.
        splits: as of `splits_of`.
    """
    size, call = next(iter(_calls(chunks).items()))
    small = sum(leaf.nbytes for leaf in splits[size].features) / size * len(order)
    if small > FEATURE_BYTES or len({_kind(split) for split in splits.values()}) > 1:
        return None
    values = _computed(examples, steps(call), splits[size], order, size=size)
    return FeatureFeed(examples, order, values, splits)


def are_of_each(
    examples: ExampleFeed,
    steps: Steps,
    order: np.ndarray,
    chunks: Sequence[Chunk],
    splits: dict[int, FrozenSplit],
) -> bool:
    """Whether an example has the same features whatever stands beside it; tries at least two.

    Args:
        examples: as of `featured`, and so are the others.
        steps: see there.
        order: see there.
        chunks: see there.
        splits: see there.
    """
    size, call = next(iter(_calls(chunks).items()))
    few = order[: max(2 * size, 2)]
    forth, back = (
        _computed(examples, steps(call), splits[size], some, size=size)
        for some in (few, few[::-1].copy())
    )
    return all(nearly_equal(a, b.flip(0)) for a, b in zip(forth, back, strict=True))


def _calls(chunks: Sequence[Chunk]) -> dict[int, Call]:
    """One call that reads examples for every batch size, in the order of first use."""
    found: dict[int, Call] = {}
    for chunk in chunks:
        for call in chunk.calls:
            if call.size:
                found.setdefault(call.size, call)
    return found


def _computed(
    examples: ExampleFeed, bound: Bound, split: FrozenSplit, order: np.ndarray, *, size: int
) -> list[Tensor]:
    """Features of examples, each [N, ...], some of them at a time."""
    at_once = max(CHUNK_EXAMPLES // size, 1) * size
    parts = []
    for start in range(0, len(order), at_once):
        part = order[start : start + at_once]
        found = bound.features(split, examples.rows(part, -len(part) % size), size=size)
        parts.append([leaf[: len(part)] for leaf in found])
    return [torch.cat(leaves) for leaves in zip(*parts, strict=True)]


def _kind(split: FrozenSplit) -> tuple[object, ...]:
    return (*split.reads, *((leaf.shape[1:], leaf.dtype) for leaf in split.features))
