"""Programs of a local step: traced when first needed, and the last used ones kept."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from flfast.engines.fused.graph.cuda_graphs import CudaGraphs, Recorder, Replayed
from flfast.engines.fused.graph.executor import Executor, executor
from flfast.engines.fused.graph.frozen_layers import Halves, halves
from flfast.engines.fused.graph.local_step import LocalStep
from flfast.engines.fused.graph.trace import like, lowered, operators, rewritten, simplified
from flfast.engines.fused.graph.vmapped import stacked
from flfast.state.tree import Tree, leaves

KEPT = 64
"""Programs; where batches must keep their sizes, every size of a population may need its own."""


class Programs:
    """Runs local steps, alone or for a stack of clients.

    Args:
        step: the local step.

    Attributes:
        recorder: makes programs repeatable, where launching operators takes longer than they do.
        splits: steps in two, the last used ones.
    """

    def __init__(self, step: LocalStep) -> None:
        self.step = step
        device = next(step.model.parameters()).device
        self.recorder: Recorder | None = CudaGraphs(device) if device.type == "cuda" else None
        self._programs: OrderedDict[Hashable, Executor] = OrderedDict()
        self.splits: OrderedDict[Hashable, FrozenSplit | None] = OrderedDict()

    def bind(self, kind: str, trees: list[Tree], *, alone: list[Tree] | None = None) -> "Bound":
        """Local steps that will differ in nothing but their rows.

        Args:
            kind: which function of `LocalStep`: `whole`, `accumulate` or `apply`.
            trees: state, context, settings and batch, but for what changes from step to step.
            alone: of a stack, the trees of any one of its clients; leaves of `trees` that have one
                axis more are then [S, ...].
        """
        return Bound(self, kind, trees, alone)

    def operators(self, kind: str, trees: list[Tree], rows: Tree) -> GraphModule:
        """The operators of a client's step; its arguments as of `run`, rows of one step."""
        *rest, batch = trees
        with torch.inference_mode(mode=False):
            return operators(getattr(self.step, kind), [*rest, {**batch, **rows}])

    def program(self, key: Hashable, make: Callable[[], Executor], *, in_place: int) -> Executor:
        """The program kept by a key.

        Args:
            key: all that programs differ in.
            make: compiles it.
            in_place: number of its first inputs that are state.
        """
        if key not in self._programs:
            made = make()
            self._programs[key] = (
                Replayed(made, self.recorder, in_place=in_place) if self.recorder else made
            )
            if len(self._programs) > KEPT:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return self._programs[key]


class Bound:
    """Local steps over rows; see `Programs.bind`."""

    def __init__(
        self, programs: Programs, kind: str, trees: list[Tree], alone: list[Tree] | None
    ) -> None:
        self._programs, self._kind, self._alone = programs, kind, alone
        self._trees = trees if alone is None else alone
        self._fixed = [leaf for tree in trees for leaf in leaves(tree)]
        self._in_place = len(list(leaves(trees[0])))
        self._shared: tuple[bool, ...] | None = None
        if alone is not None:
            singles = [leaf for tree in alone for leaf in leaves(tree)]
            pairs = zip(self._fixed, singles, strict=True)
            self._shared = tuple(leaf.ndim == single.ndim for leaf, single in pairs)
        self._device_type = self._fixed[0].device.type
        self._autocast = torch.is_autocast_enabled(self._device_type)
        # Types and places in memory are in the program: weights of round 1 may have others.
        context = zip(_names(trees[1]), leaves(trees[1]), strict=True)
        read = tuple((name, leaf.dtype, leaf.is_contiguous()) for name, leaf in context)
        self._key = (kind, read, self._autocast, self._shared)
        self._found: dict[Hashable, Executor] = {}

    def __call__(self, rows: Tree, *, num: int) -> None:
        """Take `num` steps.

        Args:
            rows: the rest of the batch by name, each [num, ...], of a stack [num, S, ...].
            num: steps.
        """
        given = list(rows.values())
        axes = 1 if self._alone is None else 2
        shapes = tuple(row.shape[axes:] for row in given)
        if shapes not in self._found:
            make = partial(self._make, rows)
            key = (self._key, tuple(rows), shapes)
            self._found[shapes] = self._programs.program(key, make, in_place=self._in_place)
        width = 1 if self._alone is None else given[0].shape[1]
        self._run(self._found[shapes], given, num=num, width=width)

    def _run(self, program: Executor, rows: list[Tensor], *, num: int, width: int = 1) -> None:
        # Autocast is in the program.
        off = torch.autocast(self._device_type, enabled=False) if self._autocast else nullcontext()
        with off:
            program(self._fixed, rows, num=num, width=width)

    def features(self, split: "FrozenSplit", rows: Tree, *, size: int) -> list[Tensor]:
        """What the first half makes of rows, each [M, ...]: tensors [M, ...].

        Args:
            split: the halves.
            rows: M is a multiple of the size.
            size: B of the split.
        """
        num = len(next(iter(rows.values()))) // size
        found = [leaf.new_empty((num * size, *leaf.shape[1:])) for leaf in split.features]
        given = [*rows.values(), *found]
        self._run(split.first, [row.unflatten(0, (num, size)) for row in given], num=num)
        return found

    def go_on(self, split: "FrozenSplit", rows: Tree, *, num: int) -> None:
        """Take `num` steps by the second half.

        Args:
            split: the halves.
            rows: those of `split.reads`, then features, each [num, B, ...].
            num: steps.
        """
        self._run(split.rest, list(rows.values()), num=num)

    def split(self, rows: Tree) -> "FrozenSplit | None":
        """The steps in two; None where nothing costly is frozen. Not for stacks.

        Args:
            rows: of one step, each [B, ...]; no values are read.
        """
        key = (self._key, *((name, row.shape) for name, row in rows.items()))
        splits = self._programs.splits
        if key not in splits:
            found = self.in_halves(rows)
            with torch.inference_mode(mode=False):
                splits[key] = None if found is None else self._split(found, rows, key)
            if len(splits) > KEPT:
                splits.popitem(last=False)
        splits.move_to_end(key)
        return splits[key]

    def _split(self, found: Halves, rows: Tree, key: tuple[Hashable, ...]) -> "FrozenSplit":
        read = [name for name, used in zip(rows, found.reads, strict=True) if used]
        num = len(found.features)
        rest = self._programs.program(
            ("rest", *key),
            lambda: executor(lowered(found.rest), sliced=len(read) + num),
            in_place=self._in_place,
        )
        first = executor(lowered(found.first), sliced=len(rows) + num)
        return FrozenSplit(first, rest, read, [like(leaf) for leaf in found.features])

    def in_halves(self, rows: Tree) -> Halves | None:
        """The traced step in two; see `frozen.halves`."""
        module = self._programs.operators(self._kind, self._trees, rows)
        state, *_, batch = self._trees
        changing = {f"params.{name}" for name in self._programs.step.trained}
        varying = [place for place, name in enumerate(_names(state)) if name in changing]
        varying += range(len(self._fixed) - len(batch), len(self._fixed))
        with torch.inference_mode(mode=False):
            return halves(simplified(module), sliced=len(rows), varying=varying)

    def _make(self, rows: Tree) -> Executor:
        one = (0,) if self._alone is None else (0, 0)
        first = {name: row[one] for name, row in rows.items()}
        module = self._programs.operators(self._kind, self._trees, first)
        *rest, batch = self._trees
        with torch.inference_mode(mode=False):
            return _compiled(module, [*rest, batch, first], self._shared)


class FrozenSplit(NamedTuple):
    """Steps in two; see `frozen.halves`.

    Attributes:
        first: from examples to features.
        rest: a step that reads features.
        reads: names of the rows that the rest reads, too.
        features: stand-ins for those of a batch, [B, ...].
    """

    first: Executor
    rest: Executor
    reads: list[str]
    features: list[Tensor]


def _compiled(module: GraphModule, trees: list[Tree], shared: tuple[bool, ...] | None) -> Executor:
    sliced = len(trees[-1])
    if shared is None:
        return executor(rewritten(module), sliced=sliced)
    singles = [leaf for tree in trees for leaf in leaves(tree)]
    shared = (*shared, *[False] * sliced)
    pair = (rewritten(stacked(module, singles, shared, width)) for width in (2, 3))
    return executor(*pair, sliced=sliced)


def _names(tree: Tree, prefix: str = "") -> Iterator[Any]:
    for name, leaf in tree.items():
        if isinstance(leaf, dict):
            yield from _names(leaf, f"{prefix}{name}.")
        else:
            yield prefix + name
