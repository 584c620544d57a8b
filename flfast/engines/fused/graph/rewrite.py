"""Rewrites a traced step into fewer operators without changing what it computes.

Autograd leaves operators without effect; these are removed. An update that subtracts a gradient
`a @ b` becomes one `addmm`, which never stores the gradient. `trace.simplified` runs this first,
then `pooling.py`.
"""

from typing import Any

import torch
from torch.fx import Graph, Node

from flfast.engines.fused.graph.dataflow import (
    between,
    calls,
    changed_nodes,
    changes_between,
    is_call,
    remove_unused,
    same_memory,
    shape,
)

aten = torch.ops.aten

_PRODUCTS: dict[Any, Any] = {
    aten.mm.default: aten.addmm_.default,
    aten.bmm.default: aten.baddbmm_.default,
}
_UNSAFE_VIEW = aten._unsafe_view.default  # noqa: SLF001 - its name in torch
_RESHAPES = (aten.view.default, _UNSAFE_VIEW, aten.expand.default)
_SCALINGS = (aten.mul.Tensor, aten.mul.Scalar)
_UPDATES: dict[Any, int] = {aten.sub_.Tensor: -1, aten.add_.Tensor: 1}


def rewrite(graph: Graph) -> None:
    """Rewrite a graph in place; see the module."""
    _simplify(graph)
    changed = changed_nodes(graph)
    for node in calls(graph, *_UPDATES):
        _split_update(graph, node, changed)
    remove_unused(graph)
    for node in calls(graph, aten.mul.Tensor):
        _merge_scalings(graph, node)
    remove_unused(graph)
    changed = changed_nodes(graph)
    for node in calls(graph, *_UPDATES):
        _fuse_update(graph, node, changed)
    remove_unused(graph)
    graph.lint()


def _simplify(graph: Graph) -> None:
    """Remove operators without effect: detach, views of equal shape, double transposes, x ** 1."""
    for node in calls(graph, aten.detach.default, aten.alias.default, aten.lift_fresh.default):
        _replace(node, node.args[0])
    for node in calls(graph, *_RESHAPES):
        if _same_shape_and_dtype(node, node.args[0]):
            _replace(node, node.args[0])
    for node in calls(graph, aten.t.default, aten.transpose.int):
        inner: Any = node.args[0]
        if is_call(inner, node.target) and inner.args[1:] == node.args[1:]:
            _replace(node, inner.args[0])
    for node in calls(graph, aten.pow.Tensor_Scalar):
        if node.args[1] == 1:
            _replace(node, node.args[0])
    remove_unused(graph)


def _merge_scalings(graph: Graph, node: Node) -> None:
    """Turn (x * a) * b with scalars a and b into x * (a * b), which reads x once."""
    pair = [_unexpanded(argument) for argument in node.args]
    tensors = [part for part in pair if not _is_scalar(part)]
    if len(tensors) != 1 or not _same_shape_and_dtype(tensors[0], node):
        return
    value: Any = tensors[0]
    scale = next(part for part in pair if part is not value)
    inner: list[Any] = list(value.args) if is_call(value, *_SCALINGS) else []
    with graph.inserting_before(node):
        numbers = bool(inner) and _is_scalar(inner[1]) and isinstance(scale, Node)
        if numbers and len(value.users) == 1 and not changes_between(value, node):
            value, scale = inner[0], _like(scale, graph, aten.mul.Tensor, scale, inner[1])
        if (value, scale) != node.args:
            _replace(node, _like(node, graph, aten.mul.Tensor, value, scale))


def _unexpanded(value: Any) -> Any:
    """The scalar that an `expand` repeats; any other value unchanged."""
    repeats = is_call(value, aten.expand.default) and _is_scalar(value.args[0])
    return value.args[0] if repeats else value


def _fuse_update(graph: Graph, node: Node, changed: set[Node]) -> None:
    """Turn p -= a @ b into one operator, so that the gradient never exists in memory."""
    target: Any
    update: Any
    target, update = node.args
    if node.kwargs or not isinstance(update, Node) or len(update.users) > 1:
        return
    product = _PRODUCTS.get(update.target)
    if product is None or not _same_shape_and_dtype(target, update):
        return
    # The product moves to the update. No operator may change its factors before that.
    if any(changed.intersection(same_memory(factor)) for factor in update.all_input_nodes):
        return
    options: dict[str, Any] = {"beta": 1, "alpha": _UPDATES[node.target]}
    decay = target
    if is_call(decay, aten.mul_.Tensor) and _can_defer(decay, node):
        # momentum * buffer + gradient: the factor beta of addmm does the decay, too.
        target, options["beta"] = decay.args
    with graph.inserting_before(node):
        fused = graph.call_function(product, (target, *update.args), options)
    _replace(node, fused)
    if decay is not target:
        graph.erase_node(decay)


def _split_update(graph: Graph, node: Node, changed: set[Node]) -> None:
    """Turn p -= (a @ b + c) * s into p -= c * s and p -= (a * s) @ b, which stores no a @ b."""
    target: Any
    update: Any
    target, update = node.args
    total, scale = update, None
    if is_call(update, aten.mul.Tensor) and _is_scalar(update.args[1]):
        total, scale = update.args
    if node.kwargs or not is_call(total, aten.add.Tensor) or total.kwargs:
        return
    product, rest = sorted(total.args, key=lambda part: not is_call(part, *_PRODUCTS))
    if not is_call(product, *_PRODUCTS) or not _same_shape_and_dtype(target, product):
        return
    if any(len(part.users) > 1 for part in {update, total, product}):
        return
    # Both updates read their inputs at the old update's place, the second one after the first
    # has changed p. No input may change in place.
    read = [part for part in (*product.args, rest, scale) if isinstance(part, Node)]
    unsafe = any(changed.intersection(same_memory(part)) for part in read)
    if unsafe or not _same_shape_and_dtype(rest, product):
        return
    with graph.inserting_before(node):
        if scale is not None:
            left, right = product.args
            product = _like(product, graph, product.target, _scaled(graph, left, scale), right)
            rest = _like(rest, graph, aten.mul.Tensor, rest, scale)
        first = _like(node, graph, node.target, target, rest)
        _replace(node, _like(node, graph, node.target, first, product))


def _scaled(graph: Graph, factor: Any, scale: Any) -> Node:
    """A factor of a product times a scalar; a transposed factor stays a transpose."""
    if is_call(factor, aten.t.default, aten.transpose.int):
        inner, *dims = factor.args
        return _like(factor, graph, factor.target, _scaled(graph, inner, scale), *dims)
    return _like(factor, graph, aten.mul.Tensor, factor, scale)


def _like(other: Node, graph: Graph, target: Any, *args: Any) -> Node:
    """A new call whose result has the shape and type of `other`'s."""
    call = graph.call_function(target, args)
    call.meta = dict(other.meta)
    return call


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, Node) or shape(value) == ()


def _same_shape_and_dtype(left: Any, right: Any) -> bool:
    """Whether two nodes have equal shape and data type."""
    if shape(left) is None or shape(left) != shape(right):
        return False
    return bool(left.meta["val"].dtype == right.meta["val"].dtype)


def _can_defer(decay: Node, update: Node) -> bool:
    """Whether only the update reads the result of `mul_` by a number."""
    if not isinstance(decay.args[1], float) or len(decay.users) > 1:
        return False
    *_, memory = same_memory(decay)
    read = (read for node in between(decay, update) for read in node.all_input_nodes)
    return not any(memory in same_memory(node) for node in read)


def _replace(node: Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)
