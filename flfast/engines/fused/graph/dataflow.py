"""What a graph of traced operators says of its nodes: who changes what, and who sees whom."""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node


def calls(graph: Graph, *targets: Any) -> Iterator[Node]:
    """Calls of any of some operators; the graph may change meanwhile."""
    for node in list(graph.nodes):
        if is_call(node, *targets):
            yield node


def is_call(node: Any, *targets: Any) -> bool:
    """Whether an argument is a call of any of some operators."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def remove_unused(graph: Graph) -> None:
    """Take out operators that nobody reads and that change nothing in place."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not is_mutable(node):
            graph.erase_node(node)


def changed_nodes(graph: Graph) -> set[Node]:
    """What in-place operators change, seen from any of its names."""
    return {
        node
        for call in graph.nodes
        for written in _written(call)
        for node in (call, *same_memory(written))
    }


def changes_between(first: Node, last: Node) -> bool:
    """Whether anything that `first` reads is changed before `last`, not counting either."""
    read = {memory for node in first.all_input_nodes for memory in same_memory(node)}
    node = first.next
    while node is not last:
        if any(read.intersection(same_memory(written)) for written in _written(node)):
            return True
        node = node.next
    return False


def _written(node: Node) -> Iterator[Node]:
    """Arguments that an operator changes in place."""
    if not is_mutable(node):
        return
    for place, argument in enumerate(_schema(node).arguments):
        given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write:
            parts = given if isinstance(given, (list, tuple)) else [given]
            yield from (part for part in parts if isinstance(part, Node))


def same_memory(node: Node) -> Iterator[Node]:
    """An operator's result, and what that is a view of, down to the tensor that was made."""
    value: Any = node
    while isinstance(value, Node):
        yield value
        # One of several results is made, and made anew, by the operator that returns them.
        passes_on = is_mutable(value) or is_view(value) or value.target is operator.getitem
        value = value.args[0] if value.op == "call_function" and passes_on else None


def is_view(node: Node) -> bool:
    """Whether an operator's result lies in the memory of its first argument."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and is_view(node.args[0])
    return bool(getattr(node.target, "is_view", False))


def is_random(node: Node) -> bool:
    """Whether an operator draws random numbers."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def is_mutable(node: Node) -> bool:
    """Whether an operator changes any of its arguments."""
    return bool(getattr(_schema(node), "is_mutable", False))


def _schema(node: Node) -> Any:
    return getattr(node.target, "_schema", None)


def invariants(graph: Graph, rows: set[Node]) -> set[Node]:
    """Operators that need not be repeated when only `rows` change from step to step.

    Args:
        graph: of a step.
        rows: inputs that change; the others are the same tensors in every step, though the step
            may change their values.
    """
    changed = changed_nodes(graph)
    # What stays the same, and what stays at the same place: a view of changing values.
    stable: set[Any] = set()
    placed: set[Any] = set()
    for node in graph.nodes:
        if node.op in {"placeholder", "get_attr"} and node not in rows:
            placed.add(node)
            if node not in changed:
                stable.add(node)
        elif node.op == "call_function" and not is_mutable(node) and not is_random(node):
            if is_view(node) and placed.issuperset(node.all_input_nodes):
                placed.add(node)
            if node not in changed and stable.issuperset(node.all_input_nodes):
                stable.add(node)
    return {node for node in stable | placed if node.op == "call_function"}
