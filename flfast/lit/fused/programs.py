"""Programs of a local step: traced when first needed, and the last used ones kept."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from flfast.lit.fused.graphs import CudaGraphs, Recorder, Replayed
from flfast.lit.fused.stacked import stacked
from flfast.lit.fused.step import LocalStep
from flfast.lit.fused.torchscript import Script
from flfast.lit.fused.trace import operators, rewritten
from flfast.state.tree import Tree, leaves

KEPT = 64
"""Programs; where batches must keep their sizes, every size of a population may need its own."""


class Programs:
    """Runs local steps, alone or for a stack of clients.

    Args:
        step: the local step.

    Attributes:
        recorder: makes programs repeatable, where launching operators takes longer than they do.
    """

    def __init__(self, step: LocalStep) -> None:
        self.step = step
        device = next(step.model.parameters()).device
        self.recorder: Recorder | None = CudaGraphs(device) if device.type == "cuda" else None
        self._programs: OrderedDict[Hashable, Script | Replayed] = OrderedDict()

    def run(
        self, kind: str, trees: list[Tree], rows: Tree, *, num: int, alone: list[Tree] | None
    ) -> None:
        """Take `num` steps.

        Args:
            kind: which function of `LocalStep`: `whole`, `accumulate` or `apply`.
            trees: state, context, settings and batch, but for what changes from step to step.
            rows: the rest of the batch by name, each [num, ...].
            num: steps.
            alone: of a stack, the trees of any one of its clients; rows then are [num, S, ...],
                and so are leaves of trees that have one axis more.
        """
        fixed = [leaf for tree in trees for leaf in leaves(tree)]
        program = self._program(kind, trees, fixed, rows, alone)
        width = 1 if alone is None else next(iter(rows.values())).shape[1]
        with torch.autocast(fixed[0].device.type, enabled=False):  # it is in the program
            program(fixed, list(rows.values()), num=num, width=width)

    def operators(self, kind: str, trees: list[Tree], rows: Tree) -> GraphModule:
        """The operators of a client's step; its arguments as of `run`, rows of one step."""
        *rest, batch = trees
        with torch.inference_mode(mode=False):
            return operators(getattr(self.step, kind), [*rest, {**batch, **rows}])

    def _program(
        self,
        kind: str,
        trees: list[Tree],
        fixed: list[Tensor],
        rows: Tree,
        alone: list[Tree] | None,
    ) -> Script | Replayed:
        shared: tuple[bool, ...] | None = None
        if alone is not None:
            singles = [leaf for tree in alone for leaf in leaves(tree)]
            shared = tuple(a.ndim == b.ndim for a, b in zip(fixed, singles, strict=True))
        shapes = tuple(
            (name, row.shape[1 if shared is None else 2 :]) for name, row in rows.items()
        )
        autocast = torch.is_autocast_enabled(fixed[0].device.type)
        key = (kind, tuple(_names(trees[1])), shapes, autocast, shared)
        if key not in self._programs:
            first = {name: row[0] if shared is None else row[0, 0] for name, row in rows.items()}
            *rest, batch = trees if alone is None else alone
            module = self.operators(kind, [*rest, batch], first)
            with torch.inference_mode(mode=False):
                script = _compiled(module, [*rest, batch, first], shared)
            in_place = len(list(leaves(trees[0])))
            self._programs[key] = (
                Replayed(script, self.recorder, in_place=in_place) if self.recorder else script
            )
            if len(self._programs) > KEPT:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return self._programs[key]


def _compiled(module: GraphModule, trees: list[Tree], shared: tuple[bool, ...] | None) -> Script:
    sliced = len(trees[-1])
    if shared is None:
        return Script(rewritten(module), sliced=sliced)
    singles = [leaf for tree in trees for leaf in leaves(tree)]
    shared = (*shared, *[False] * sliced)
    pair = (rewritten(stacked(module, singles, shared, width)) for width in (2, 3))
    return Script(*pair, sliced=sliced)


def _names(tree: Tree, prefix: str = "") -> Iterator[Any]:
    for name, leaf in tree.items():
        if isinstance(leaf, dict):
            yield from _names(leaf, f"{prefix}{name}.")
        else:
            yield prefix + name
