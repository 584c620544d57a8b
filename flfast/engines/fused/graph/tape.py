"""The executor in C++: `state/native/tape.h` calls torch's operators without Python in between."""

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
from flfast.state.native.compiler import missing

_LETTERS = {Register: "r", LastRead: "l", PerClient: "w", str: "s"}
# Position is the number that operators use. Torch has no public function for it.
_FORMATS = (
    torch.contiguous_format,
    torch.preserve_format,
    torch.channels_last,
    torch.channels_last_3d,
)


class Tape:
    """An `Executor` that needs our compiled C++.

    Raises:
        RuntimeError: if our C++ is missing, or an operator does not take one of the constants.
    """

    def __init__(self, code: Instructions) -> None:
        reason = missing()
        if reason is not None:
            raise RuntimeError(reason)
        self.reads, self._constants = code.reads, code.constants
        once, step = (tuple(map(_written, part)) for part in (code.once, code.step))
        self._tape = torch.ops.flfast.make_tape(once, step, code.num_registers)

    def __call__(self, fixed: list[Tensor], rows: list[Tensor], *, num: int, width: int) -> None:
        """Run `num` steps, as `Executor` describes."""
        torch.ops.flfast.run_tape(self._tape, fixed + self._constants, rows, num, width)


def _written(each: Instruction) -> tuple[Any, ...]:
    """An instruction in the form that `call_of` in `state/native/tape.h` reads."""
    schema = each.operator._schema  # noqa: SLF001 - there is no public name
    args = tuple(map(_word, each.args))
    results = tuple(-1 if number is None else number for number in each.results)
    return schema.name, schema.overload_name, args, results


def _word(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_word, value))
    if type(value) in _LETTERS:
        return f"{_LETTERS[type(value)]}{value}"
    return _FORMATS.index(value) if isinstance(value, torch.memory_format) else value
