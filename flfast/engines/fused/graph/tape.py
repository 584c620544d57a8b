"""A loop over a step in C++: our kernels' library calls torch's operators, without Python."""

from typing import Any

import torch
from torch import Tensor

from flfast.engines.fused.graph.instructions import (
    Instruction,
    Instructions,
    LastRead,
    PerClient,
    Register,
)
from flfast.engines.fused.native.compiler import missing

_LETTERS = {Register: "r", LastRead: "l", PerClient: "w", str: "s"}
# Operators have numbers for them, and torch no function that gives these.
_FORMATS = (
    torch.contiguous_format,
    torch.preserve_format,
    torch.channels_last,
    torch.channels_last_3d,
)


class Tape:
    """An `Executor`, where our C++ could be compiled.

    Args:
        code: the step.

    Attributes:
        reads: see `Executor`.

    Raises:
        RuntimeError: if there is no library, or no operator takes such a constant.
    """

    def __init__(self, code: Instructions) -> None:
        reason = missing()
        if reason is not None:
            raise RuntimeError(reason)
        self.reads, self._constants = code.reads, code.constants
        once, step = (tuple(map(_written, part)) for part in (code.once, code.step))
        self._tape = torch.ops.flfast.make_tape(once, step, code.num_registers)

    def __call__(self, fixed: list[Tensor], rows: list[Tensor], *, num: int, width: int) -> None:
        """Run `num` steps; see `Executor`."""
        torch.ops.flfast.run_tape(self._tape, fixed + self._constants, rows, num, width)


def _written(each: Instruction) -> tuple[Any, ...]:
    """As `call_of` in native/tape.h reads it."""
    schema = each.operator._schema  # noqa: SLF001 - it has no other name
    args = tuple(map(_word, each.args))
    results = tuple(-1 if number is None else number for number in each.results)
    return schema.name, schema.overload_name, args, results


def _word(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_word, value))
    if type(value) in _LETTERS:
        return f"{_LETTERS[type(value)]}{value}"
    return _FORMATS.index(value) if isinstance(value, torch.memory_format) else value
