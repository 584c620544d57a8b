"""A traced step as TorchScript: many steps in one call, without Python between operators."""

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from flfast.engines.fused.graph.loop_source import loop_source


class TorchScript:
    """An `Executor`, where this torch has TorchScript, which it calls deprecated.

    Args:
        modules: see `loop_source`.
        sliced: see there.

    Attributes:
        reads: see `Executor`.

    Raises:
        NotImplementedError: see `loop_source`.
        RuntimeError: if TorchScript does not know an operator.
    """

    def __init__(self, *modules: GraphModule, sliced: int) -> None:
        source = loop_source(modules, sliced=sliced, called=_called, frees=False)
        self.reads, self._constants = source.reads, source.constants
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._run = torch.jit.CompilationUnit(source.text).run

    def __call__(self, fixed: list[Tensor], rows: list[Tensor], *, num: int, width: int) -> None:
        """Run `num` steps; see `Executor`."""
        # On a GPU its profiler would compile kernels after some runs, perhaps in a capture.
        with torch.jit.optimized_execution(not fixed[0].is_cuda):
            self._run(fixed + self._constants, rows, num, width)


def _called(target: Any) -> str:
    # TorchScript looks for the overload by itself, and knows no names of them.
    namespace, name = target._schema.name.split("::")  # noqa: SLF001 - it has no other name
    return f"torch.ops.{namespace}.{name}"
