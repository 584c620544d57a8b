"""Proximal terms in a single pass over the weights: the pull towards an anchor, and the distance.

`lowering` calls these rewrites after it has placed the kernels of products.
"""

from typing import Any

import torch
from torch.fx import Graph, Node

from flfast.engines.fused.graph.dataflow import (
    calls,
    changes_between,
    is_call,
    is_mutable,
    same_memory,
)

aten = torch.ops.aten


def join_pulls(graph: Graph) -> None:
    """Join w -= s * (w - a) with the product that updates w right after it."""
    for node in calls(graph, torch.ops.flfast.weight_update_.default):
        first: Any = node.args[0]
        if not is_call(first, aten.sub_.Tensor) or first.kwargs or len(first.users) > 1:
            continue
        weights, rest = first.args
        if not _is_contiguous(rest) or node.args[3] != 1 or not _follows(node, first):
            continue
        anchor, share = _pull(weights, rest, first)
        if not _is_contiguous(anchor) or _shape(anchor) != _shape(weights):
            continue
        node.args = (weights, *node.args[1:])
        node.kwargs = {"anchor": anchor, "share": share}
        graph.erase_node(first)


def _follows(update: Node, first: Node) -> bool:
    """Whether nothing between the two changes anything, or reads what they change."""
    node = first.next
    while node is not update:
        memory = {root for read in node.all_input_nodes for root in same_memory(read)}
        if is_mutable(node) or memory.intersection(same_memory(first)):
            return False
        node = node.next
    return True


def _pull(weights: Any, change: Node, update: Node) -> tuple[Any, Any]:
    """Anchor a and share s of a change s * (w - a) that `update` subtracts; None for no anchor."""
    away: Any = change
    share: Any = None
    scaled = is_call(change, aten.mul.Tensor) and _shape(change.args[1]) == ()
    if scaled and not changes_between(change, update):
        away, share = change.args
    is_away = is_call(away, aten.sub.Tensor) and not away.kwargs and away.args[0] is weights
    if not is_away or changes_between(away, update):
        return None, None
    return away.args[1], share


def measure_distances(graph: Graph) -> None:
    """Replace the sum of (w - a)^2 by a kernel that does not store the difference."""
    for node in calls(graph, aten.sum.default):
        square: Any = node.args[0]
        if node.kwargs or len(square.users) > 1:
            continue
        if not is_call(square, aten.pow.Tensor_Scalar) or square.args[1] != 2:
            continue
        way: Any = square.args[0]
        if not is_call(way, aten.sub.Tensor) or way.kwargs or changes_between(way, node):
            continue
        if all(map(_is_contiguous, way.args)) and len({_shape(arg) for arg in way.args}) == 1:
            with graph.inserting_before(node):
                new = graph.call_function(torch.ops.flfast.squared_distance.default, way.args)
            new.meta["val"] = node.meta.get("val")
            node.replace_all_uses_with(new)
            graph.erase_node(node)


def _is_contiguous(node: Any) -> bool:
    """Whether a node is a contiguous float32 tensor on the CPU."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return False
    return value.device.type == "cpu" and value.is_contiguous()


def _shape(node: Any) -> tuple[int, ...] | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None
