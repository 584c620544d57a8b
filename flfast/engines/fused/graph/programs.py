"""Compiles local steps when they are first needed, keeps them, and runs them over rows.

The files of `run/` call this one, and it calls the rest of `graph/` in this order:

1. `trace.py` records a step of `local_step.py` as a graph of torch operators.
2. `frozen_layers.py` splits the graph where layers are frozen.
3. `rewrite.py`, `pooling.py` and `lowering.py` make the graph faster.
4. `vmapped.py` turns the graph into one for a stack of clients.
5. `executor.py` compiles a loop over steps, which `cuda_graphs.py` replays on a GPU.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from flfast.engines.fused.graph.cuda_graphs import CudaGraphs, Replayed
from flfast.engines.fused.graph.executor import Executor, executor
from flfast.engines.fused.graph.frozen_layers import split_frozen
from flfast.engines.fused.graph.local_step import LocalStep
from flfast.engines.fused.graph.trace import like, lowered, operators, rewritten, simplified
from flfast.engines.fused.graph.vmapped import vmap_graph
from flfast.state.tree import Tree, leaf_names, leaves

MAX_PROGRAMS = 64
"""Programs kept. Where batches must keep their size, every size of a client needs its own."""


class StepPrograms:
    """The compiled programs of one local step, for single clients and for stacks.

    Attributes:
        recorder: records programs for replay, where launching operators takes longer than running
            them; None runs operator by operator.
        splits: split steps, the most recently used ones.
    """

    def __init__(self, step: LocalStep) -> None:
        self.step = step
        device = next(step.model.parameters()).device
        self._device_type = device.type
        self.recorder = CudaGraphs(device) if device.type == "cuda" else None
        self._programs: OrderedDict[Hashable, Executor] = OrderedDict()
        self.splits: OrderedDict[Hashable, SplitStep | None] = OrderedDict()
        self._traced: tuple[Hashable, GraphModule] | None = None

    def operators(self, kind: str, trees: list[Tree], rows: Tree) -> GraphModule:
        """The traced step of one client, for the caller to change; see `BoundStep`.

        `rows` are those of one step, each [B, ...].
        """
        *rest, batch = trees
        given = [*rest, {**batch, **rows}]
        autocast = torch.is_autocast_enabled(self._device_type)
        key = (kind, autocast, *map(_layout, given))
        # The start of training asks for the same trace several times in a row.
        if self._traced is None or self._traced[0] != key:
            with torch.inference_mode(mode=False):
                self._traced = key, operators(getattr(self.step, kind), given)
        module = self._traced[1]
        return GraphModule(module, deepcopy(module.graph))

    def forget(self) -> None:
        """Drop all programs, and the memory of their recordings."""
        self._programs.clear()

    def program(self, key: Hashable, make: Callable[[], Executor], *, num_state: int) -> Executor:
        """The program of a key, compiled when it is first needed.

        The key has everything in which programs differ. The first `num_state` inputs of the
        program are state, changed in place.
        """
        if key not in self._programs:
            made = make()
            self._programs[key] = (
                Replayed(made, self.recorder, num_state=num_state) if self.recorder else made
            )
            if len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return self._programs[key]


class BoundStep:
    """A local step with the inputs that all steps share; rows are given with each call.

    Args:
        programs: of the step.
        kind: method of `LocalStep`: `whole`, `accumulate` or `apply`.
        trees: state, context, settings, and the part of the batch that is no row.
        single: for a stack, the trees of any one of its clients. Leaves of `trees` that have one
            axis more are [S, ...]; all clients share the others.
        unfold: whether a stack's convolutions are batched products; see `vmap_graph`.
    """

    def __init__(
        self,
        programs: StepPrograms,
        kind: str,
        trees: list[Tree],
        *,
        single: list[Tree] | None = None,
        unfold: bool = False,
    ) -> None:
        self._programs, self._kind, self._single = programs, kind, single
        self._unfold = unfold
        self._trees = trees if single is None else single
        self._fixed = [leaf for tree in trees for leaf in leaves(tree)]
        self._num_state = len(list(leaves(trees[0])))
        self._shared: tuple[bool, ...] | None = None
        if single is not None:
            singles = [leaf for tree in single for leaf in leaves(tree)]
            pairs = zip(self._fixed, singles, strict=True)
            self._shared = tuple(leaf.ndim == alone.ndim for leaf, alone in pairs)
        self._device_type = self._fixed[0].device.type
        self._autocast = torch.is_autocast_enabled(self._device_type)
        # A program is compiled for shapes, data types and memory layouts. The context of round 1
        # may have others than those of later rounds.
        columns = (leaf_names(trees[1]), leaves(trees[1]), leaves(self._trees[1]))
        layout = tuple(
            (name, leaf.dtype, leaf.is_contiguous(), alone.shape)
            for name, leaf, alone in zip(*columns, strict=True)
        )
        self._key = (kind, layout, self._autocast, self._shared, unfold)
        self._executors: dict[Hashable, Executor] = {}

    def __call__(self, rows: Tree, *, num: int) -> None:
        """Take `num` steps.

        `rows` has the rest of the batch by name, each [num, ...]; for a stack [num, S, ...].
        """
        given = list(rows.values())
        axes = 1 if self._single is None else 2
        shapes = tuple(row.shape[axes:] for row in given)
        if shapes not in self._executors:
            make = partial(self._compile, rows)
            key = (self._key, tuple(rows), shapes)
            self._executors[shapes] = self._programs.program(key, make, num_state=self._num_state)
        width = 1 if self._single is None else given[0].shape[1]
        self._run(self._executors[shapes], given, num=num, width=width)

    def _run(self, program: Executor, rows: list[Tensor], *, num: int, width: int = 1) -> None:
        # The traced operators already contain autocast's casts.
        off = torch.autocast(self._device_type, enabled=False) if self._autocast else nullcontext()
        with off:
            program(self._fixed, rows, num=num, width=width)

    def run_frozen(self, split: "SplitStep", rows: Tree, *, size: int) -> list[Tensor]:
        """Features of rows, each [M, ...]. Changes nothing else.

        M is a multiple of the batch size B of the split, which is `size`.
        """
        num = len(next(iter(rows.values()))) // size
        features = [leaf.new_empty((num * size, *leaf.shape[1:])) for leaf in split.features]
        given = [*rows.values(), *features]
        self._run(split.frozen, [row.unflatten(0, (num, size)) for row in given], num=num)
        return features

    def run_rest(self, split: "SplitStep", rows: Tree, *, num: int) -> None:
        """Take `num` steps from rows named in `split.reads`, then features, each [num, B, ...]."""
        self._run(split.rest, list(rows.values()), num=num)

    def split(self, rows: Tree) -> "SplitStep | None":
        """The step split at its frozen layers; None where no expensive layer is frozen.

        Stacks cannot be split. Of the rows of one step, each [B, ...], only shapes and types are
        read.
        """
        key = (self._key, *((name, row.shape) for name, row in rows.items()))
        splits = self._programs.splits
        if key not in splits:
            splits[key] = self._split(rows, key)
            if len(splits) > MAX_PROGRAMS:
                splits.popitem(last=False)
        splits.move_to_end(key)
        return splits[key]

    def _split(self, rows: Tree, key: tuple[Hashable, ...]) -> "SplitStep | None":
        module = self._programs.operators(self._kind, self._trees, rows)
        state, *_, batch = self._trees
        trained = {f"params.{name}" for name in self._programs.step.trained}
        varying = [place for place, name in enumerate(leaf_names(state)) if name in trained]
        varying += range(len(self._fixed) - len(batch), len(self._fixed))
        with torch.inference_mode(mode=False):
            split = split_frozen(simplified(module), sliced=len(rows), varying=varying)
            if split is None:
                return None
            reads = [name for name, read in zip(rows, split.reads, strict=True) if read]
            num = len(split.features)
            rest = self._programs.program(
                ("rest", *key),
                lambda: executor(lowered(split.rest), sliced=len(reads) + num),
                num_state=self._num_state,
            )
            frozen = executor(lowered(split.frozen), sliced=len(rows) + num)
            return SplitStep(frozen, rest, reads, [like(leaf) for leaf in split.features])

    def _compile(self, rows: Tree) -> Executor:
        index = (0,) if self._single is None else (0, 0)
        one_step = {name: row[index] for name, row in rows.items()}
        module = self._programs.operators(self._kind, self._trees, one_step)
        *rest, batch = self._trees
        with torch.inference_mode(mode=False):
            given = [*rest, batch, one_step]
            return _executor(module, given, self._shared, unfold=self._unfold)


class SplitStep(NamedTuple):
    """The compiled parts of a `SplitGraph`.

    Attributes:
        frozen: computes features of examples.
        rest: the local step, which reads features.
        reads: names of the rows that the rest still reads.
        features: stand-ins for the features of a batch, [B, ...]; they hold no values.
    """

    frozen: Executor
    rest: Executor
    reads: list[str]
    features: list[Tensor]


def _executor(
    module: GraphModule, trees: list[Tree], shared: tuple[bool, ...] | None, *, unfold: bool
) -> Executor:
    """Compile a step: for one client, or for stacks of any width where `shared` is given."""
    sliced = len(trees[-1])
    if shared is None:
        return executor(rewritten(module), sliced=sliced)
    singles = [leaf for tree in trees for leaf in leaves(tree)]
    shared = (*shared, *[False] * sliced)
    # Two widths show how the operators depend on the number of clients.
    pair = (
        rewritten(vmap_graph(module, singles, shared, width, unfold=unfold)) for width in (2, 3)
    )
    return executor(*pair, sliced=sliced)


def _layout(tree: Tree) -> tuple[Hashable, ...]:
    """Everything of a tree that a trace depends on."""
    pairs = zip(leaf_names(tree), leaves(tree), strict=True)
    return tuple((name, leaf.shape, leaf.stride(), leaf.dtype) for name, leaf in pairs)
