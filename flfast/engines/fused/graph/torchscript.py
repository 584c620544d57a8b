"""A traced step as TorchScript: many steps in one call, without Python between operators."""

import math
import operator
import re
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from flfast.engines.fused.graph.dataflow import invariants
from flfast.engines.fused.graph.trace import constants, placeholders

_NUMBER = re.compile(r"(?<![\w.])(\d[\w.]*)")
_NAMED = (torch.dtype, torch.memory_format, torch.layout)


class Script:
    """A program that runs a step again and again, each time over the next rows.

    Args:
        modules: the traced step; or that of two stacks, of 2 and of 3 clients, which
            together say what it is for any number.
        sliced: number of its last inputs that are rows of a step; the others stay.

    Attributes:
        reads: of every input that stays, whether the step needs it.

    Raises:
        NotImplementedError: if a value in the graph has no TorchScript form, or the steps of the
            stacks differ in more than a factor.
        RuntimeError: if TorchScript does not know an operator.
    """

    def __init__(self, *modules: GraphModule, sliced: int) -> None:
        self._constants = list(constants(modules[0]).values())
        inputs = placeholders(modules[0].graph)
        self.reads = [bool(node.users) for node in inputs[: len(inputs) - sliced]]
        source, *wider = (_source(module, sliced) for module in modules)
        for module, other in zip(modules[1:], wider, strict=True):
            alike = map(torch.equal, self._constants, constants(module).values())
            if not all(alike):
                raise NotImplementedError("a constant depends on the number of clients")
            source = for_any_width(source, other)
        self._run = torch.jit.CompilationUnit(source).run

    def __call__(self, fixed: list[Tensor], rows: list[Tensor], *, num: int, width: int) -> None:
        """Run `num` steps.

        Args:
            fixed: inputs that all steps share.
            rows: inputs of which step i reads [i], each [num, ...].
            num: steps.
            width: clients; 1 where the step is that of one.
        """
        self._run(fixed + self._constants, rows, num, width)


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


def _source(module: GraphModule, sliced: int) -> str:
    nodes = placeholders(module.graph)
    fixed, rows = nodes[: len(nodes) - sliced], nodes[len(nodes) - sliced :]
    names = [node.name for node in fixed] + list(constants(module))
    lines = ["def run(fixed: List[Tensor], rows: List[Tensor], num: int, width: int) -> None:"]
    lines += [f"    {name} = fixed[{place}]" for place, name in enumerate(names)]
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    once = invariants(module.graph, set(rows))
    lines += [f"    {node.name} = {_call(node)}" for node in calls if node in once]
    lines += ["    for step in range(num):"]
    lines += [
        f"        {node.name} = rows[{place}].select(0, step)" for place, node in enumerate(rows)
    ]
    lines += [f"        {node.name} = {_call(node)}" for node in calls if node not in once]
    lines += ["        pass"]
    return "\n".join(lines) + "\n"


def _call(node: Node) -> str:
    if node.target is operator.getitem:
        return f"{_value(node.args[0])}[{node.args[1]}]"
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        raise NotImplementedError(f"{node.target} has no TorchScript form")
    namespace, name = schema.name.split("::")
    args = [_value(arg) for arg in node.args]
    args += [f"{key}={_value(value)}" for key, value in node.kwargs.items()]
    return f"torch.ops.{namespace}.{name}({', '.join(args)})"


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
    raise NotImplementedError(f"{value!r} has no TorchScript form")
