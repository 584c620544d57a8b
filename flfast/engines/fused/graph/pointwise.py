"""Joins elementwise operators on tensors of one shape into passes over memory.

`lowering.py` runs this last. A correction, an ascent step and an update of the weights read and
write all parameters once for each operator. Joined, only what other operators read goes to memory,
and a gradient `g.t() @ x` that nothing else reads stays in the cache. Elementwise operators give
the same bits. Products are rounded as our kernel does it, elsewhere at edges of odd widths.
"""

import operator
from collections import defaultdict
from typing import Any

import torch
from torch.fx import Graph, Node

from flfast.engines.fused.graph.dataflow import (
    invariants,
    is_call,
    is_mutable,
    is_plain,
    remove_unused,
    same_memory,
    shape,
    transposed,
    written_arguments,
)

aten = torch.ops.aten

MOST_OPERATORS = 24
"""Operators of one pass. More of them would read too many tensors side by side."""

_COPY = aten.copy_.default
_PRODUCTS = (aten.mm.default, aten.bmm.default)
# The numbers are those in state/native/pointwise.h.
_NAMES = ("add", "sub", "mul", "div")
_FRESH: dict[Any, int] = {getattr(aten, name).Tensor: i for i, name in enumerate(_NAMES)}
_IN_PLACE: dict[Any, int] = {getattr(aten, f"{name}_").Tensor: i for i, name in enumerate(_NAMES)}
_CODES = _FRESH | _IN_PLACE | {_COPY: 4, aten.abs.default: 5}


def join_pointwise(graph: Graph, *, most_rows: int) -> None:
    """Join operators, and products of at most `most_rows` rows; the graph changes in place."""
    once = _move_invariants(graph)
    uses = _Uses(graph)
    joinable = [n for n in graph.nodes if n not in once and uses.is_joinable(n, most_rows)]
    family, passes = _families(joinable), defaultdict[Node, list[list[Node]]](list)
    for node in joinable:
        near = passes[family[node]]
        fitting = [members for members in near if uses.can_move(node, members)]
        if fitting:
            fitting[-1].append(node)
        else:
            near.append([node])
    for members in (members for near in passes.values() for members in near):
        if len(members) > 1 or is_call(members[0], *_PRODUCTS):
            _join(graph, members)
    remove_unused(graph)


def _move_invariants(graph: Graph) -> set[Node]:
    """Move operators that run before the loop to the graph's beginning, and return them."""
    once = invariants(graph, set())
    *_, last = (node for node in graph.nodes if node.op == "placeholder")
    for node in [node for node in graph.nodes if node in once or node.op == "get_attr"]:
        last.append(node)
        last = node
    return once


class _Uses:
    """Which nodes read and write which memory, and in which order they run."""

    def __init__(self, graph: Graph) -> None:
        self._order = {node: place for place, node in enumerate(graph.nodes)}
        self._reads = defaultdict[Node, list[Node]](list)
        self._writes = defaultdict[Node, list[Node]](list)
        for node in graph.nodes:
            for read in node.all_input_nodes:
                self._reads[_root(read)].append(node)
            for written in written_arguments(node):
                self._writes[_root(written)].append(node)

    def is_joinable(self, node: Node, most_rows: int) -> bool:
        """Whether `pointwise` of `state/native/pointwise.h` can do what an operator does."""
        if node.kwargs or not is_plain(node) or not shape(node):
            return False
        if is_call(node, *_PRODUCTS):
            g, x = transposed(node.args[0]), node.args[1]
            fits = is_plain(g) and is_plain(x) and shape(g)[-2] <= most_rows
            return bool(fits and node.meta["val"].is_contiguous())
        if node.target not in _CODES or len(node.args) > 2 or not _is_dense(node):
            return False
        if is_mutable(node) and _value(node).op != "placeholder":
            return False
        # The kernel takes a number as the second operand alone.
        whole = node.args[-1 if node.target is _COPY else 0]
        operands = all(self._is_operand(argument, node) for argument in node.args)
        return operands and bool(shape(whole))

    def _is_operand(self, argument: Any, node: Node) -> bool:
        if not isinstance(argument, Node):
            return isinstance(argument, (int, float))
        if shape(argument) == ():
            value = argument.meta["val"]
            return bool(value.is_floating_point() and value.device.type == "cpu")
        # A view of memory that is written could be shifted against it.
        shifted = self._writes[_root(argument)] and _value(argument) is not _root(argument)
        return is_plain(argument) and not shifted and _layout(argument) == _layout(node)

    def can_move(self, node: Node, members: list[Node]) -> bool:
        """Whether a node may run with others, where the first of them runs."""
        first, inside = self._order[members[0]], {*members}
        if len(members) == MOST_OPERATORS or _layout(node) != _layout(members[0]):
            return False
        inputs = node.all_input_nodes
        if not all(read in inside or self._order[read] < first for read in inputs):
            return False
        touching = [self._writes[_root(read)] for read in inputs]
        touching += [self._reads[_root(written)] for written in written_arguments(node)]
        passed = {other for others in touching for other in others} - inside
        return not any(first < self._order[other] < self._order[node] for other in passed)


def _families(joinable: list[Node]) -> dict[Node, Node]:
    """One of the operators that each is connected with, the same for all that are connected."""
    members = {node: [node] for node in joinable}
    for node in joinable:
        for read in node.all_input_nodes if not is_call(node, *_PRODUCTS) else ():
            if read in members and members[read] is not members[node]:
                members[read] += members[node]
                members |= dict.fromkeys(members[node], members[read])
    return {node: connected[0] for node, connected in members.items()}


def _join(graph: Graph, members: list[Node]) -> None:
    """Write one call in place of operators, where the first of them is."""
    inside = {*members}
    steps = [node for node in members if not is_call(node, *_PRODUCTS)]
    results = [n for n in members if not is_mutable(n) and not inside.issuperset(n.users)]
    # Products that others read come first, among products and among results.
    results.sort(key=steps.__contains__)
    products = [node for node in members if node not in steps]
    products.sort(key=results.__contains__, reverse=True)
    num_kept = sum(node in results for node in products)
    written = [*dict.fromkeys(_value(node) for node in steps if is_mutable(node))]
    operands = dict.fromkeys(_value(argument) for node in steps for argument in node.args)
    nodes = [v for v in operands if isinstance(v, Node) and v not in {*members, *written}]
    reads, scalars = ([n for n in nodes if bool(shape(n)) is whole] for whole in (True, False))
    numbers = [value for value in operands if not isinstance(value, Node)]
    scratch, num_scratch = _scratch(steps, inside.difference(results, products))

    # Operators find a product that is kept at its second register.
    tensors = [*results, *written, *reads, *products]
    last = len(tensors) + num_scratch
    register = {value: place for place, value in enumerate(tensors)}
    register |= {node: len(tensors) + slot for node, slot in scratch.items()}
    register |= {value: last + place for place, value in enumerate([*scalars, *numbers])}
    code: list[int] = []
    for node in steps:
        given = [register[_value(argument)] for argument in node.args]
        left, right = (given[-1], given[-1]) if node.target is _COPY else (given[0], given[-1])
        code += [_CODES[node.target], register[_value(node)], left, right]
    factors = [part for n in products for part in (transposed(n.args[0]), n.args[1])]
    floats = [float(number) for number in numbers]
    sizes = (len(results), num_kept, num_scratch)
    args = (reads, written, factors, scalars, floats, code, *sizes)
    with graph.inserting_before(members[0]):
        call = graph.call_function(torch.ops.flfast.pointwise.default, args)
        found = [graph.call_function(operator.getitem, (call, i)) for i in range(len(results))]
    for node, value in zip(results, found, strict=True):
        value.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(value)
    for node in reversed(members):
        if is_mutable(node):
            node.replace_all_uses_with(_value(node))
        graph.erase_node(node)


def _scratch(steps: list[Node], passed: set[Node]) -> tuple[dict[Any, int], int]:
    """Places of values that are only passed on, and how many places they need."""
    last: dict[Any, Node] = {a: node for node in steps for a in node.args if a in passed}
    slots: dict[Any, int] = {}
    free: list[int] = []
    num = 0
    for node in steps:
        # A result may take the place of an operand, which is read first.
        free += [slots[a] for a in dict.fromkeys(node.args) if a in slots and last[a] is node]
        if node in passed:
            if not free:
                free, num = [num], num + 1
            slots[node] = free.pop()
    return slots, num


def _value(value: Any) -> Any:
    """The tensor that operators in place changed; any other value as it is."""
    while isinstance(value, Node) and value.op == "call_function" and is_mutable(value):
        value = value.args[0]
    return value


def _root(node: Node) -> Node:
    *_, root = same_memory(node)
    return root


def _layout(node: Node) -> tuple[Any, ...]:
    return shape(node), node.meta["val"].stride()


def _is_dense(node: Node) -> bool:
    value = node.meta["val"]
    sizes = zip(value.shape, value.stride(), strict=True)
    return bool(1 + sum((size - 1) * stride for size, stride in sizes) == value.numel())
