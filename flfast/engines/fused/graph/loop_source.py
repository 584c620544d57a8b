"""Source of a loop over a traced step, in the Python that TorchScript reads, too."""

import math
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from flfast.engines.fused.graph.dataflow import invariants
from flfast.engines.fused.graph.trace import constants, placeholders

_NUMBER = re.compile(r"(?<![\w.])(\d[\w.]*)")
_NAMED = (torch.dtype, torch.memory_format, torch.layout)


class LoopSource(NamedTuple):
    """A function `run(fixed, rows, num, width)`; see `Executor`.

    Attributes:
        text: of the function.
        constants: tensors that follow the caller's in `fixed`.
        reads: of every input that stays, whether the step needs it.
    """

    text: str
    constants: list[Tensor]
    reads: list[bool]


def loop_source(
    modules: tuple[GraphModule, ...], *, sliced: int, called: Callable[[Any], str], frees: bool
) -> LoopSource:
    """The loop over a step.

    Args:
        modules: the traced step; or that of two stacks, of 2 and of 3 clients, which
            together say what it is for any number.
        sliced: number of its last inputs that are rows of a step; the others stay.
        called: operator -> its name in the source.
        frees: whether values are deleted after their last use.

    Raises:
        NotImplementedError: if a value in the graph has no written form, or the steps of the
            stacks differ in more than a factor.
    """
    first, *others = modules
    own = list(constants(first).values())
    fixed = placeholders(first.graph)[: len(placeholders(first.graph)) - sliced]
    text, *wider = (_loop(module, sliced, called, frees=frees) for module in modules)
    for module, other in zip(others, wider, strict=True):
        if not all(map(torch.equal, own, constants(module).values())):
            raise NotImplementedError("a constant depends on the number of clients")
        text = for_any_width(text, other)
    return LoopSource(text, own, [bool(node.users) for node in fixed])


def for_any_width(two: str, three: str) -> str:
    """Source for stacks of `width` clients, from those for 2 and for 3.

    >>> for_any_width("view(x, [2, 10, 8])", "view(x, [3, 10, 12])")
    'view(x, [width * 1, 10, width * 4])'

    Raises:
        NotImplementedError: if they differ in anything but multiples of the number of clients.
    """
    parts, others = _NUMBER.split(two), _NUMBER.split(three)
    if len(parts) != len(others):
        raise NotImplementedError("the operators depend on the number of clients")
    return "".join(map(_scaled, parts, others))


def _scaled(two: str, three: str) -> str:
    if two == three:
        return two
    if not (two.isdigit() and three.isdigit() and int(two) * 3 == int(three) * 2):
        raise NotImplementedError(f"{two} for 2 clients is {three} for 3")
    return f"width * {int(two) // 2}"


def _loop(module: GraphModule, sliced: int, called: Callable[[Any], str], *, frees: bool) -> str:
    nodes = placeholders(module.graph)
    fixed, rows = nodes[: len(nodes) - sliced], nodes[len(nodes) - sliced :]
    names = [node.name for node in fixed] + list(constants(module))
    lines = ["def run(fixed: List[Tensor], rows: List[Tensor], num: int, width: int) -> None:"]
    lines += [f"    {name} = fixed[{place}]" for place, name in enumerate(names)]
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    once = invariants(module.graph, set(rows))
    lines += [f"    {node.name} = {_call(node, called)}" for node in calls if node in once]
    lines += ["    for step in range(num):", "        pass"]
    lines += [
        f"        {node.name} = rows[{place}].select(0, step)" for place, node in enumerate(rows)
    ]
    steps = [node for node in calls if node not in once]
    last = _last_uses(steps) if frees else {}
    for node in steps:
        lines += [f"        {node.name} = {_call(node, called)}"]
        if node in last:
            lines += [f"        del {', '.join(value.name for value in last[node])}"]
    return "\n".join(lines) + "\n"


def _last_uses(steps: list[Node]) -> dict[Node, list[Node]]:
    """What is no longer read after each operator of a step."""
    found: dict[Node, list[Node]] = {}
    seen: set[Node] = set()
    made = set(steps)
    for node in reversed(steps):
        for value in (node, *node.all_input_nodes):
            if value in made and value not in seen:
                seen.add(value)
                found.setdefault(node, []).append(value)
    return found


def _call(node: Node, called: Callable[[Any], str]) -> str:
    if node.target is operator.getitem:
        return f"{_value(node.args[0])}[{node.args[1]}]"
    if getattr(node.target, "_schema", None) is None:
        raise NotImplementedError(f"{node.target} has no written form")
    args = [_value(arg) for arg in node.args]
    args += [f"{key}={_value(value)}" for key, value in node.kwargs.items()]
    return f"{called(node.target)}({', '.join(args)})"


def _value(value: Any) -> str:
    if isinstance(value, Node):
        return value.name
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item) for item in value)}]"
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, _NAMED):
        return str(value)
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    raise NotImplementedError(f"{value!r} has no written form")
