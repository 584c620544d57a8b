"""A traced step as TorchScript: many steps in one call, without Python between operators."""

import math
import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from flfast.lit.fused.rewrite import invariants
from flfast.lit.fused.trace import constants, placeholders

_NAMED = (torch.dtype, torch.memory_format, torch.layout)


class Script:
    """A program that runs a step again and again over consecutive rows.

    Args:
        module: a traced step.
        sliced: number of its last inputs that are rows of a step; the others stay.

    Raises:
        NotImplementedError: if a value in the graph has no TorchScript form.
        RuntimeError: if TorchScript does not know an operator.
    """

    def __init__(self, module: GraphModule, *, sliced: int) -> None:
        self._constants = list(constants(module).values())
        self._run = torch.jit.CompilationUnit(_source(module, sliced)).run

    def __call__(self, fixed: list[Tensor], rows: list[Tensor], *, num: int, size: int) -> None:
        """Run `num` steps.

        Args:
            fixed: inputs that all steps share.
            rows: inputs of which step i reads rows [i * size, (i + 1) * size).
            num: steps.
            size: rows a step.
        """
        self._run(fixed + self._constants, rows, num, size)


def _source(module: GraphModule, sliced: int) -> str:
    nodes = placeholders(module.graph)
    fixed, rows = nodes[: len(nodes) - sliced], nodes[len(nodes) - sliced :]
    names = [node.name for node in fixed] + list(constants(module))
    lines = ["def run(fixed: List[Tensor], rows: List[Tensor], num: int, size: int) -> None:"]
    lines += [f"    {name} = fixed[{place}]" for place, name in enumerate(names)]
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    once = invariants(module.graph, set(rows))
    lines += [f"    {node.name} = {_call(node)}" for node in calls if node in once]
    lines += ["    for step in range(num):"]
    lines += [
        f"        {node.name} = rows[{place}].narrow(0, step * size, size)"
        for place, node in enumerate(rows)
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
