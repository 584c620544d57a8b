"""Questions about a traced graph: which operators change which tensors, and which are views.

The files that change graphs ask them: `rewrite.py`, `pooling.py`, `frozen_layers.py`
and `lowering.py`. `instructions.py` asks which operators may move out of the loop over steps.
"""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node


def calls(graph: Graph, *targets: Any) -> Iterator[Node]:
    """All calls of the operators `targets`; the graph may be changed while iterating."""
    for node in list(graph.nodes):
        if is_call(node, *targets):
            yield node


def is_call(node: Any, *targets: Any) -> bool:
    """Whether a node or other argument is a call of one of the operators `targets`."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def shape(node: Any) -> Any:
    """Shape of a tensor's node, a tuple; None of anything else."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def is_plain(node: Any) -> bool:
    """Whether a node is a float32 tensor of the CPU."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor):
        return False
    return value.dtype == torch.float32 and value.device.type == "cpu"


def is_contiguous(node: Any) -> bool:
    """Whether a node is a contiguous float32 tensor of the CPU."""
    return is_plain(node) and node.meta["val"].is_contiguous()


def transposed(node: Any) -> Any:
    """The tensor that a node transposes in its last two dimensions; None if there is none."""
    if is_call(node, torch.ops.aten.t.default):
        return node.args[0]
    if is_call(node, torch.ops.aten.transpose.int):
        num_dims = len(shape(node))
        swapped = {dim % num_dims for dim in node.args[1:]}
        return node.args[0] if swapped == {num_dims - 2, num_dims - 1} else None
    return None


def put(graph: Graph, node: Node, target: Any, args: tuple[Any, ...]) -> None:
    """Put a call of another operator in the place of a node."""
    with graph.inserting_before(node):
        new = graph.call_function(target, args)
    new.meta["val"] = node.meta.get("val")
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def between(earlier: Node, later: Node) -> Iterator[Node]:
    """The nodes strictly between two."""
    node = earlier.next
    while node is not later:
        yield node
        node = node.next


def remove_unused(graph: Graph) -> None:
    """Remove operators without users that change nothing in place."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not is_mutable(node):
            graph.erase_node(node)


def changed_nodes(graph: Graph) -> set[Node]:
    """All nodes whose memory an in-place operator writes, views included."""
    return {
        node
        for call in graph.nodes
        for written in written_arguments(call)
        for node in (call, *same_memory(written))
    }


def changes_between(earlier: Node, later: Node) -> bool:
    """Whether an operator strictly between `earlier` and `later` changes an input of `earlier`."""
    read = {memory for node in earlier.all_input_nodes for memory in same_memory(node)}
    changed = (written for node in between(earlier, later) for written in written_arguments(node))
    return any(read.intersection(same_memory(written)) for written in changed)


def written_arguments(node: Node) -> Iterator[Node]:
    """The arguments that an operator changes in place."""
    if not is_mutable(node):
        return
    for place, argument in enumerate(_schema(node).arguments):
        given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write:
            parts = given if isinstance(given, (list, tuple)) else [given]
            yield from (part for part in parts if isinstance(part, Node))


def same_memory(node: Node) -> Iterator[Node]:
    """A node, then the nodes that it is a view of, down to the one that allocated the memory."""
    value: Any = node
    while isinstance(value, Node):
        yield value
        # An operator with several results makes them, and makes them anew in every step.
        aliases = is_mutable(value) or is_view(value) or value.target is operator.getitem
        value = value.args[0] if value.op == "call_function" and aliases else None


def is_view(node: Node) -> bool:
    """Whether an operator's result is a view of its first argument."""
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
    """Operators that can run once before the loop over steps.

    Args:
        graph: graph of a step.
        rows: inputs that are other tensors in every step. The other inputs are the same tensors,
            but steps may change their values.
    """
    changed = changed_nodes(graph)
    stable: set[Any] = set()  # values that no step changes
    placed: set[Any] = set()  # views at a fixed address; steps may change their values
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
