"""A traced step as Python: an operator a line, which works in every torch."""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from flfast.engines.fused.graph.loop_source import loop_source


class StraightLine:
    """An `Executor`.

    Args:
        modules: see `loop_source`.
        sliced: see there.

    Attributes:
        reads: see `Executor`.

    Raises:
        NotImplementedError: see `loop_source`.
    """

    def __init__(self, *modules: GraphModule, sliced: int) -> None:
        names: dict[str, Any] = {"torch": torch, "Tensor": Tensor, "List": list}

        def called(target: Any) -> str:
            name = str(target).replace(".", "_")
            names[name] = target
            return name

        source = loop_source(modules, sliced=sliced, called=called, frees=True)
        self.reads, self._constants = source.reads, source.constants
        exec(compile(source.text, "<local step>", "exec"), names)
        self._run = names["run"]

    def __call__(self, fixed: list[Tensor], rows: list[Tensor], *, num: int, width: int) -> None:
        """Run `num` steps; see `Executor`."""
        self._run(fixed + self._constants, rows, num, width)
