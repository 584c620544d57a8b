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
from flfast.engines.fused.run.step_schedule import CHUNK_EXAMPLES, Chunk, Span
from flfast.state.precision import to_device
from flfast.state.tree import Tree

FEATURE_BYTES = 2**28
"""Largest size of a client's features. Larger ones are computed anew in every epoch."""

Bind = Callable[[Span], BoundStep]
"""Gives the bound step of a span."""


class FeatureRows:
    """Features, and the client's rows that steps still read; see `ExampleRows`.

    `order` has the indices of all its examples, and `values` are features, each [N, ...], in this
    order. `splits` has the split step by batch size.
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
        """See `ExampleRows`."""
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
        """See `ExampleRows`."""
        size = next(iter(rows.values())).shape[1]
        bound.run_rest(self._splits[size], rows, num=num)


class FrozenLayers:
    """The frozen layers of a client's local steps, and the steps without them.

    Args:
        examples: the client's, not augmented.
        bind: gives the bound step of a span.
        order: indices of all its examples; at least two.
        chunks: chunks of a local epoch.

    Attributes:
        exist: whether the steps of all batch sizes have expensive layers that are frozen.
    """

    def __init__(
        self, examples: ExampleRows, bind: Bind, order: np.ndarray, chunks: Sequence[Chunk]
    ) -> None:
        self._examples, self._order = examples, order
        spans = _span_by_size(chunks)
        self._size, first = next(iter(spans.items()))
        self._bound, self._splits = bind(first), dict[int, SplitStep]()
        sample = examples.rows(order[:1], 0)
        for size, span in spans.items():
            rows = {name: row.new_empty((size, *row.shape[1:])) for name, row in sample.items()}
            split = bind(span).split(rows)
            if split is None:
                break
            self._splits[size] = split
        self.exist = len(self._splits) == len(spans)

    def features(self) -> FeatureRows | None:
        """The features; None if they are too large, or if batch sizes need different ones."""
        splits, order = self._splits, self._order
        num_bytes = sum(f.nbytes for f in splits[self._size].features) / self._size * len(order)
        if num_bytes > FEATURE_BYTES or len({_signature(split) for split in splits.values()}) > 1:
            return None
        return FeatureRows(self._examples, order, self._run(order), splits)

    def _run(self, order: np.ndarray) -> list[Tensor]:
        """Features of examples, each [N, ...], computed in chunks."""
        size, split = self._size, self._splits[self._size]
        at_once = max(CHUNK_EXAMPLES // size, 1) * size
        parts = []
        for start in range(0, len(order), at_once):
            part = order[start : start + at_once]
            rows = self._examples.rows(part, -len(part) % size)
            features = self._bound.run_frozen(split, rows, size=size)
            parts.append([leaf[: len(part)] for leaf in features])
        return [torch.cat(leaves) for leaves in zip(*parts, strict=True)]


def _span_by_size(chunks: Sequence[Chunk]) -> dict[int, Span]:
    """One span that reads examples for every batch size, in the order of first use."""
    spans: dict[int, Span] = {}
    for chunk in chunks:
        for span in chunk.spans:
            if span.size:
                spans.setdefault(span.size, span)
    return spans


def _signature(split: SplitStep) -> tuple[object, ...]:
    """What the rest of a split step reads: names of rows, shapes and types of features."""
    return (*split.reads, *((leaf.shape[1:], leaf.dtype) for leaf in split.features))
