"""The executor in Python: a generated function with one operator per line."""

from typing import Any

from torch import Tensor

from flfast.engines.fused.graph.instructions import (
    Instruction,
    Instructions,
    LastRead,
    PerClient,
    Register,
)


class StraightLine:
    """An `Executor` that works with every torch and needs no compiler."""

    def __init__(self, code: Instructions) -> None:
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
