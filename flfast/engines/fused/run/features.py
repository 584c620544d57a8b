"""Features of frozen layers: computed once per client and stage instead of in every epoch.

`one_client.py` asks for them after the step schedule is known and before the first step.
`graph/frozen_layers.py` splits the traced step into frozen layers and the rest. The first part
computes features of all the client's examples here; every local step then runs the rest only.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from flfast.engines.fused.graph.programs import BoundStep, SplitStep
from flfast.engines.fused.run.example_rows import ExampleRows
from flfast.engines.fused.run.padding import nearly_equal
from flfast.engines.fused.run.step_schedule import CHUNK_EXAMPLES, Chunk, Span
from flfast.state.transfer import to_device
from flfast.state.tree import Tree

FEATURE_BYTES = 2**28
"""Largest size of a client's features. Larger ones are computed anew in every epoch."""

Bind = Callable[[Span], BoundStep]
"""Gives the bound step of a span."""


class FeatureRows:
    """Features, and the examples' rows that steps still read; see `RowSource`.

    Args:
        examples: the client's.
        order: indices of all its examples.
        values: features, each [N, ...], in this order.
        splits: the split step by batch size.
    """

    def __init__(
        self,
        examples: ExampleRows,
        order: np.ndarray,
        values: list[Tensor],
        splits: dict[int, SplitStep],
    ) -> None:
        self._examples, self._values, self._splits = examples, values, splits
        self._places = np.argsort(order)
        self._sorted = order[self._places]
        self._reads = next(iter(splits.values())).reads

    def rows(self, order: np.ndarray, padding: int) -> Tree:
        """See `RowSource`."""
        source = self._examples
        rows = (source.rows if "inputs" in self._reads else source.targets)(order, padding)
        places = self._places[np.searchsorted(self._sorted, order)]
        places = np.concatenate([places, places[:1].repeat(padding)])
        index = to_device(places, self._values[0].device)
        named = {name: rows[name] for name in self._reads}
        return named | {
            f"feature_{i}": value.index_select(0, index) for i, value in enumerate(self._values)
        }

    def step(self, bound: BoundStep, rows: Tree, *, num: int) -> None:
        """See `RowSource`."""
        size = next(iter(rows.values())).shape[1]
        bound.run_rest(self._splits[size], rows, num=num)


def split_by_batch_size(
    examples: ExampleRows, bind: Bind, order: np.ndarray, chunks: Sequence[Chunk]
) -> dict[int, SplitStep] | None:
    """The split step for every batch size; None where no expensive layer is frozen.

    Args:
        examples: a client's.
        bind: gives the bound step of a span.
        order: indices of all its examples.
        chunks: of a local epoch.
    """
    sample = examples.rows(order[:1], 0)
    splits: dict[int, SplitStep] = {}
    for size, span in _span_by_size(chunks).items():
        rows = {name: row.new_empty((size, *row.shape[1:])) for name, row in sample.items()}
        split = bind(span).split(rows)
        if split is None:
            return None
        splits[size] = split
    return splits


def compute_features(
    examples: ExampleRows,
    bind: Bind,
    order: np.ndarray,
    chunks: Sequence[Chunk],
    splits: dict[int, SplitStep],
) -> FeatureRows | None:
    """A client's features; None if they are too large, or if batch sizes need different ones.

    Args:
        examples: the client's, not augmented.
        bind: gives the bound step of a span.
        order: indices of all its examples.
        chunks: of a local epoch.
        splits: by batch size.
    """
    size, span = next(iter(_span_by_size(chunks).items()))
    num_bytes = sum(leaf.nbytes for leaf in splits[size].features) / size * len(order)
    if num_bytes > FEATURE_BYTES or len({_signature(split) for split in splits.values()}) > 1:
        return None
    values = _run_frozen_layers(examples, bind(span), splits[size], order, size=size)
    return FeatureRows(examples, order, values, splits)


def features_are_independent(
    examples: ExampleRows,
    bind: Bind,
    order: np.ndarray,
    chunks: Sequence[Chunk],
    splits: dict[int, SplitStep],
) -> bool:
    """Whether an example's features do not depend on the other examples of its batch.

    Two batches are tried in both orders, so that every example meets other neighbours.

    Args:
        examples: the client's, not augmented; at least two.
        bind: gives the bound step of a span.
        order: indices of all its examples.
        chunks: of a local epoch.
        splits: by batch size.
    """
    size, span = next(iter(_span_by_size(chunks).items()))
    few = order[: max(2 * size, 2)]
    in_order, reversed_order = (
        _run_frozen_layers(examples, bind(span), splits[size], indices, size=size)
        for indices in (few, few[::-1].copy())
    )
    pairs = zip(in_order, reversed_order, strict=True)
    return all(nearly_equal(a, b.flip(0)) for a, b in pairs)


def _span_by_size(chunks: Sequence[Chunk]) -> dict[int, Span]:
    """One span that reads examples for every batch size, in the order of first use."""
    spans: dict[int, Span] = {}
    for chunk in chunks:
        for span in chunk.spans:
            if span.size:
                spans.setdefault(span.size, span)
    return spans


def _run_frozen_layers(
    examples: ExampleRows, bound: BoundStep, split: SplitStep, order: np.ndarray, *, size: int
) -> list[Tensor]:
    """Features of examples, each [N, ...], computed in chunks."""
    at_once = max(CHUNK_EXAMPLES // size, 1) * size
    parts = []
    for start in range(0, len(order), at_once):
        part = order[start : start + at_once]
        features = bound.run_frozen(split, examples.rows(part, -len(part) % size), size=size)
        parts.append([leaf[: len(part)] for leaf in features])
    return [torch.cat(leaves) for leaves in zip(*parts, strict=True)]


def _signature(split: SplitStep) -> tuple[object, ...]:
    """What the rest of a split step reads: names of rows, shapes and types of features."""
    return (*split.reads, *((leaf.shape[1:], leaf.dtype) for leaf in split.features))
