"""Rewriting a traced step: what autograd left behind goes, updates take gradients as products."""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten

_PRODUCTS: dict[Any, Any] = {
    aten.mm.default: aten.addmm_.default,
    aten.bmm.default: aten.baddbmm_.default,
}
_UNSAFE_VIEW = aten._unsafe_view.default  # noqa: SLF001 - its name in torch
_RESHAPES = (aten.view.default, _UNSAFE_VIEW, aten.expand.default)
_UPDATES: dict[Any, int] = {aten.sub_.Tensor: -1, aten.add_.Tensor: 1}


def rewrite(graph: Graph) -> None:
    """Make the graph shorter without changing what it computes."""
    _simplify(graph)
    for node in calls(graph, aten.add.Tensor):
        _fuse_sum(graph, node)
    for fuse in (_spread_update, _fuse_update):
        changed = _changed(graph)
        for node in calls(graph, *_UPDATES):
            fuse(graph, node, changed)
        remove_unused(graph)
    remove_unused(graph)
    graph.lint()


def _simplify(graph: Graph) -> None:
    """Take out what autograd left: copies of nothing, views that change nothing, and the like."""
    for node in calls(graph, aten.detach.default, aten.alias.default, aten.lift_fresh.default):
        _replace(node, node.args[0])
    for node in calls(graph, *_RESHAPES):
        if _are_alike(node, node.args[0]):
            _replace(node, node.args[0])
    for node in calls(graph, aten.t.default, aten.transpose.int):
        inner: Any = node.args[0]
        if is_call(inner, node.target) and inner.args[1:] == node.args[1:]:
            _replace(node, inner.args[0])
    remove_unused(graph)


def remove_unused(graph: Graph) -> None:
    """Take out operators that nobody reads and that change nothing in place."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not _is_mutable(node):
            graph.erase_node(node)


def invariants(graph: Graph, rows: set[Node]) -> set[Node]:
    """Operators that need not be repeated when only `rows` change from step to step.

    Args:
        graph: of a step.
        rows: inputs that change; the others are the same tensors in every step, though the step
            may change their values.
    """
    changed = _changed(graph)
    # What stays the same, and what stays at the same place: a view of changing values.
    stable: set[Any] = set()
    placed: set[Any] = set()
    for node in graph.nodes:
        if node.op in {"placeholder", "get_attr"} and node not in rows:
            placed.add(node)
            if node not in changed:
                stable.add(node)
        elif node.op == "call_function" and not _is_mutable(node) and not is_random(node):
            if _is_view(node) and placed.issuperset(node.all_input_nodes):
                placed.add(node)
            if node not in changed and stable.issuperset(node.all_input_nodes):
                stable.add(node)
    return {node for node in stable | placed if node.op == "call_function"}


def _fuse_update(graph: Graph, node: Node, changed: set[Node]) -> None:
    """P -= a @ b becomes one operator, and the gradient never exists in memory."""
    target: Any
    update: Any
    target, update = node.args
    if node.kwargs or not isinstance(update, Node) or len(update.users) > 1:
        return
    product = _PRODUCTS.get(update.target)
    if product is None or not _are_alike(target, update):
        return
    # The product moves behind whatever happens before the update.
    if any(changed.intersection(_same_memory(factor)) for factor in update.all_input_nodes):
        return
    options: dict[str, Any] = {"beta": 1, "alpha": _UPDATES[node.target]}
    decay = target
    if is_call(decay, aten.mul_.Tensor) and _can_wait(decay, node):
        # momentum * buffer + gradient: the product can do both.
        target, options["beta"] = decay.args
    with graph.inserting_before(node):
        fused = graph.call_function(product, (target, *update.args), options)
    _replace(node, fused)
    if decay is not target:
        graph.erase_node(decay)


def _spread_update(graph: Graph, node: Node, changed: set[Node]) -> None:
    """P -= (a @ b + c) * s becomes p -= c * s and p -= (a * s) @ b, which needs no a @ b."""
    target: Any
    update: Any
    target, update = node.args
    total, scale = update, None
    if is_call(update, aten.mul.Tensor) and _is_scalar(update.args[1]):
        total, scale = update.args
    if node.kwargs or not is_call(total, aten.add.Tensor) or total.kwargs:
        return
    product, rest = sorted(total.args, key=lambda part: not is_call(part, *_PRODUCTS))
    if not is_call(product, *_PRODUCTS) or not _are_alike(target, product):
        return
    if any(len(part.users) > 1 for part in {update, total, product}):
        return
    # All is read where the update was, and the second part after the first has changed p.
    read = [part for part in (*product.args, rest, scale) if isinstance(part, Node)]
    late = any(changed.intersection(_same_memory(part)) for part in read)
    if late or not _are_alike(rest, product):
        return
    with graph.inserting_before(node):
        if scale is not None:
            left, right = product.args
            product = _like(product, graph, product.target, _scaled(graph, left, scale), right)
            rest = _like(rest, graph, aten.mul.Tensor, rest, scale)
        first = _like(node, graph, node.target, target, rest)
        _replace(node, _like(node, graph, node.target, first, product))


def _scaled(graph: Graph, factor: Any, scale: Any) -> Node:
    """A factor of a product times a number; a transposed one stays the transpose of a tensor."""
    if is_call(factor, aten.t.default, aten.transpose.int):
        inner, *dims = factor.args
        return _like(factor, graph, factor.target, _scaled(graph, inner, scale), *dims)
    return _like(factor, graph, aten.mul.Tensor, factor, scale)


def _like(other: Node, graph: Graph, target: Any, *args: Any) -> Node:
    """A call whose value has the shape and type of another's."""
    call = graph.call_function(target, args)
    call.meta = dict(other.meta)
    return call


def _is_scalar(value: Any) -> bool:
    shape = getattr(value.meta.get("val"), "shape", None) if isinstance(value, Node) else ()
    return shape == ()


def _fuse_sum(graph: Graph, node: Node) -> None:
    """A @ b + bias of a stack becomes one operator."""
    product: Any = node.args[0]
    bias: Any = node.args[1]
    alone = is_call(product, aten.bmm.default) and len(product.users) == 1 and not node.kwargs
    if not alone or not isinstance(bias, Node) or not _are_alike(product, node):
        return
    between = product.next
    while between is not node and not _is_mutable(between):
        between = between.next
    if between is node and _dtype(bias) == _dtype(product):
        with graph.inserting_before(node):
            fused = graph.call_function(aten.baddbmm.default, (bias, *product.args))
        fused.meta = dict(node.meta)
        _replace(node, fused)


def _are_alike(left: Any, right: Any) -> bool:
    """Whether one can be added to the other as it is."""
    if not (isinstance(left, Node) and isinstance(right, Node)):
        return False
    shapes = [getattr(node.meta.get("val"), "shape", None) for node in (left, right)]
    return None not in shapes and shapes[0] == shapes[1] and _dtype(left) == _dtype(right)


def _dtype(node: Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


def _can_wait(decay: Node, update: Node) -> bool:
    """Whether nobody but the update reads what a decay by a number changes."""
    if not isinstance(decay.args[1], float) or len(decay.users) > 1:
        return False
    *_, memory = _same_memory(decay)
    node = decay.next
    while node is not update:
        if any(memory in _same_memory(read) for read in node.all_input_nodes):
            return False
        node = node.next
    return True


def _changed(graph: Graph) -> set[Node]:
    """What in-place operators change, seen from any of its names."""
    return {
        node
        for call in graph.nodes
        for written in _written(call)
        for node in (call, *_same_memory(written))
    }


def _written(node: Node) -> Iterator[Node]:
    """Arguments that an operator changes in place."""
    if not _is_mutable(node):
        return
    for place, argument in enumerate(_schema(node).arguments):
        given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write:
            parts = given if isinstance(given, (list, tuple)) else [given]
            yield from (part for part in parts if isinstance(part, Node))


def _same_memory(node: Node) -> Iterator[Node]:
    """An operator's result, and what that is a view of, down to the tensor that was made."""
    value: Any = node
    while isinstance(value, Node):
        yield value
        seen_through = value.op == "call_function" and (_is_mutable(value) or _is_view(value))
        value = value.args[0] if seen_through else None


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and _is_view(node.args[0])
    return bool(getattr(node.target, "is_view", False))


def is_random(node: Node) -> bool:
    """Whether an operator draws random numbers."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _is_mutable(node: Node) -> bool:
    return bool(getattr(_schema(node), "is_mutable", False))


def _schema(node: Node) -> Any:
    return getattr(node.target, "_schema", None)


def calls(graph: Graph, *targets: Any) -> Iterator[Node]:
    """Calls of any of some operators; the graph may change meanwhile."""
    for node in list(graph.nodes):
        if is_call(node, *targets):
            yield node


def is_call(node: Any, *targets: Any) -> bool:
    """Whether an argument is a call of any of some operators."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def _replace(node: Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)
