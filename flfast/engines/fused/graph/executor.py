"""Executors run the loop over a traced local step: their interface, and which one is used.

`Tape` is in C++: `state/native/tape.h` calls torch's operators without Python in between.
`StraightLine` is in Python: a generated function with one operator per line.
"""

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.fx import GraphModule

from flfast.engines.fused.graph.instructions import (
    Instruction,
    LastRead,
    PerClient,
    Register,
    StepCode,
    instructions,
)
from flfast.state.native.compiler import missing

log = logging.getLogger(__name__)


class StraightLine:
    """An `Executor` that works with every torch and needs no compiler."""

    def __init__(self, code: StepCode) -> None:
        self.reads, self._constants = code.reads, code.constants
        names: dict[str, Any] = {}
        num_fixed = len(code.reads) + len(code.constants)
        lines = ["def run(fixed, rows, num, width):"]
        lines += [f"    r{number} = fixed[{number}]" for number in range(num_fixed)]
        lines += [f"    {_line(each, names)}" for each in code.once]
        lines += ["    for step in range(num):", "        pass"]
        for place in range(code.num_rows):
            lines += [f"        r{num_fixed + place} = rows[{place}].select(0, step)"]
        lines += [f"        {_line(each, names)}" for each in code.step]
        exec(compile("\n".join(lines), "<local step>", "exec"), names)
        self._run = names["run"]

    def __call__(self, fixed: list[Tensor], rows: list[Tensor], *, num: int, width: int) -> None:
        """Run `num` steps, as `Executor` describes."""
        self._run(fixed + self._constants, rows, num, width)


def _line(each: Instruction, names: dict[str, Any]) -> str:
    """The line that calls an operator and frees the registers that are read for the last time."""
    last: list[str] = []
    given = [_text(value, names, last) for value in each.args]
    for place, argument in enumerate(each.operator._schema.arguments):  # noqa: SLF001 - no public name
        if argument.kwarg_only:
            given[place] = f"{argument.name}={given[place]}"
    call = f"{_named(each.operator, names)}({', '.join(given)})"
    targets = ["_" if number is None else f"r{number}" for number in each.results]
    left = ", ".join([*targets, "*_"] if each.is_tuple else targets)
    return f"{left} = {call}" + (f"; del {', '.join(last)}" if last else "")


def _text(value: Any, names: dict[str, Any], last: list[str]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_text(item, names, last) for item in value)}]"
    if isinstance(value, PerClient):
        return f"width * {value}"
    if not isinstance(value, Register):
        return _named(value, names)
    if isinstance(value, LastRead):
        last.append(f"r{value}")
    return f"r{value}"


def _named(value: Any, names: dict[str, Any]) -> str:
    """Add a constant or an operator to the global names, and return its new name."""
    name = f"c{len(names)}"
    names[name] = value
    return name


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

    def __init__(self, code: StepCode) -> None:
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


VARIABLE = "FLFAST_EXECUTOR"
"""Environment variable that forces an executor by name."""


class Executor(Protocol):
    """A program that runs a step several times, each time on the next row of its inputs.

    Attributes:
        reads: for every fixed input, whether the step reads it.
    """

    reads: list[bool]

    def __call__(self, fixed: list[Tensor], rows: list[Tensor], *, num: int, width: int) -> None:
        """Run `num` steps, of `width` clients in a stack; 1 for a single client.

        All steps share the `fixed` inputs, some of which the step changes in place. Step i reads
        row i of `rows`, each [num, ...].
        """


EXECUTORS: dict[str, Callable[[StepCode], Executor]] = {
    "tape": Tape,
    "straight-line": StraightLine,
}
"""By name, fastest first."""


def executor(*modules: GraphModule, sliced: int) -> Executor:
    """Compile a traced step for the chosen executor; arguments are as of `instructions`.

    Raises:
        NotImplementedError: if the steps of two stacks do not match; see `instructions`.
        RuntimeError: if the executor does not know an operator.
        ValueError: if the environment variable names no executor.
    """
    name, _ = choice(wanted())
    return EXECUTORS[name](instructions(*modules, sliced=sliced))


def wanted() -> str:
    """The executor that the environment variable names; empty if it is not set.

    Raises:
        ValueError: if the variable names no executor.
    """
    name = os.environ.get(VARIABLE, "")
    if name and name not in EXECUTORS:
        raise ValueError(f"{VARIABLE}={name}; allowed: {', '.join(EXECUTORS)}")
    return name


@cache
def choice(name: str) -> tuple[str, str]:
    """The name of the executor that all programs use, and the reason; `name` forces one."""
    if name:
        chosen, why = name, f"{VARIABLE} asks for it"
    elif (reason := missing()) is None:
        chosen, why = "tape", "our C++ is loaded"
    else:
        chosen, why = "straight-line", f"our C++ is missing: {reason}"
    log.info("local steps run as %s: %s", chosen, why)  # once per process
    return chosen, why
