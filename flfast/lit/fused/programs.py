"""Programs of a local step: traced when first needed, and the last used ones kept."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

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
    """

    def __init__(self, step: LocalStep) -> None:
        self.step = step
        self._scripts: OrderedDict[Hashable, Script] = OrderedDict()

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
        script = self._script(kind, trees, fixed, rows, alone)
        width = 1 if alone is None else next(iter(rows.values())).shape[1]
        with torch.autocast(fixed[0].device.type, enabled=False):  # it is in the program
            script(fixed, list(rows.values()), num=num, width=width)

    def operators(self, kind: str, trees: list[Tree], rows: Tree) -> GraphModule:
        """The operators of a client's step; its arguments as of `run`, rows of one step."""
        *rest, batch = trees
        with torch.inference_mode(mode=False):
            return operators(getattr(self.step, kind), [*rest, {**batch, **rows}])

    def _script(
        self,
        kind: str,
        trees: list[Tree],
        fixed: list[Tensor],
        rows: Tree,
        alone: list[Tree] | None,
    ) -> Script:
        shared: tuple[bool, ...] | None = None
        if alone is not None:
            singles = [leaf for tree in alone for leaf in leaves(tree)]
            shared = tuple(a.ndim == b.ndim for a, b in zip(fixed, singles, strict=True))
        shapes = tuple(
            (name, row.shape[1 if shared is None else 2 :]) for name, row in rows.items()
        )
        autocast = torch.is_autocast_enabled(fixed[0].device.type)
        key = (kind, tuple(_names(trees[1])), shapes, autocast, shared)
        if key not in self._scripts:
            first = {name: row[0] if shared is None else row[0, 0] for name, row in rows.items()}
            *rest, batch = trees if alone is None else alone
            module = self.operators(kind, [*rest, batch], first)
            with torch.inference_mode(mode=False):
                self._scripts[key] = _compiled(module, [*rest, batch, first], shared)
            if len(self._scripts) > KEPT:
                self._scripts.popitem(last=False)
        self._scripts.move_to_end(key)
        return self._scripts[key]


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
