"""A traced step as instructions over numbered registers, for any number of clients."""

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from flfast.engines.fused.graph.dataflow import invariants
from flfast.engines.fused.graph.trace import constants, placeholders


class Register(int):
    """Number of the register that holds a value."""


class LastRead(Register):
    """A register that no later instruction of the step reads."""


class PerClient(int):
    """A size that is multiplied by the number of clients in the stack."""


class Instruction(NamedTuple):
    """A call of an operator.

    Attributes:
        operator: a torch operator.
        args: one value for every argument of the operator's schema: a constant, a `Register`, a
            `PerClient`, or a list of these.
        results: registers of the returned values; None for a value that is never read.
        is_tuple: whether the operator returns several values or a list.
    """

    operator: Any
    args: list[Any]
    results: list[int | None]
    is_tuple: bool


class StepCode(NamedTuple):
    """A traced step.

    Registers are numbered in this order: fixed inputs, constants, row inputs, results.

    Attributes:
        once: instructions that run once, before the first step.
        step: instructions that run in every step.
        constants: tensors that the step refers to beside its inputs.
        reads: for every fixed input, whether the step reads it.
        num_rows: number of inputs with a row per step.
        num_registers: number of all registers.
    """

    once: list[Instruction]
    step: list[Instruction]
    constants: list[Tensor]
    reads: list[bool]
    num_rows: int
    num_registers: int


def instructions(*modules: GraphModule, sliced: int) -> StepCode:
    """Write a traced step as instructions.

    Args:
        modules: the step of one client; or the steps of a stack of 2 and of a stack of 3 clients,
            which together give the step for any number of clients.
        sliced: number of last inputs that have a row per step; the other inputs are fixed.

    Raises:
        NotImplementedError: if the two stacks differ in more than sizes proportional to their
            number of clients.
    """
    first, last = modules[0], modules[-1]
    inputs, own = placeholders(first.graph), list(constants(first).values())
    fixed, rows = inputs[: len(inputs) - sliced], inputs[len(inputs) - sliced :]
    if not all(map(torch.equal, own, constants(last).values())):
        raise NotImplementedError("a constant depends on the number of clients")
    if len(first.graph.nodes) != len(last.graph.nodes):
        raise NotImplementedError("the operators depend on the number of clients")
    tensors = [node for node in first.graph.nodes if node.op == "get_attr"]
    calls = [node for node in first.graph.nodes if node.op == "call_function"]
    hoisted = invariants(first.graph, set(rows))
    once = [node for node in calls if node in hoisted]
    step = [node for node in calls if node not in hoisted]
    order = [*fixed, *tensors, *rows, *once, *step]
    writer = _Writer(order, dict(zip(first.graph.nodes, last.graph.nodes, strict=False)))
    # From the last instruction to the first, so that the first read met is the last one to run.
    writer.read.update(order[: len(order) - len(step)])
    backwards = [writer.instruction(node) for node in reversed(step) if not _is_part(node)]
    return StepCode(
        [writer.instruction(node) for node in once if not _is_part(node)],
        backwards[::-1],
        own,
        [bool(node.users) for node in fixed],
        len(rows),
        len(order),
    )


def _is_part(node: Node) -> bool:
    """Whether a node only picks one of several results; its instruction writes it itself."""
    return node.target is operator.getitem


class _Writer:
    """Writes instructions, from the last to the first.

    `order` has the nodes by register number, `twins` each node's counterpart in the graph of three
    clients. `read` are the nodes that the instructions written so far read.
    """

    def __init__(self, order: list[Node], twins: dict[Node, Node]) -> None:
        self._registers = {node: number for number, node in enumerate(order)}
        self._twins, self.read = twins, set[Node]()

    def instruction(self, node: Node) -> Instruction:
        """The instruction of a call."""
        if node.target is not self._twins[node].target:
            raise NotImplementedError("the operators depend on the number of clients")
        args = self._value(*(_arguments(own) for own in (node, self._twins[node])))
        parts: dict[Any, Node] = {part.args[1]: part for part in node.users if _is_part(part)}
        if parts and len(parts) < len(node.users):
            raise NotImplementedError(f"{node.target}: its results are read as a whole")
        found = [parts.get(place) for place in range(max(parts) + 1)] if parts else [node]
        results = [self._registers[part] if part and part.users else None for part in found]
        return Instruction(node.target, args, results, bool(parts))

    def _value(self, two: Any, three: Any) -> Any:
        if isinstance(two, Node) and self._twins[two] is three:
            kind = Register if two in self.read else LastRead
            self.read.add(two)
            return kind(self._registers[two])
        if isinstance(two, (list, tuple)) and len(two) == len(three):
            pairs = list(zip(two, three, strict=True))
            return [self._value(*pair) for pair in reversed(pairs)][::-1]
        if two is three or two == three:
            return two
        if not (isinstance(two, int) and isinstance(three, int) and two * 3 == three * 2):
            raise NotImplementedError(f"{two} for 2 clients is {three} for 3")
        return PerClient(two // 2)


def _arguments(node: Node) -> list[Any]:
    """Arguments of a call, in the order of the operator's schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        raise NotImplementedError(f"{node.target} is no operator of torch")
    others = schema.arguments[len(node.args) :]
    return [*node.args, *(node.kwargs.get(own.name, own.default_value) for own in others)]
