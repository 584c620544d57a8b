"""Proximal terms in a single pass over the weights: the pull towards an anchor, and the distance.

`lowering` calls these rewrites after it has placed the kernels of products.
"""

from typing import Any

import torch
from torch.fx import Graph, Node

from flfast.engines.fused.graph.dataflow import (
    between,
    calls,
    changes_between,
    is_call,
    is_contiguous,
    is_mutable,
    put,
    same_memory,
    shape,
)

aten = torch.ops.aten


def join_pulls(graph: Graph) -> None:
    """Join w -= s * (w - a) with the product that updates w right after it."""
    for node in calls(graph, torch.ops.flfast.weight_update_.default):
        pull: Any = node.args[0]
        if not is_call(pull, aten.sub_.Tensor) or pull.kwargs or len(pull.users) > 1:
            continue
        weights, rest = pull.args
        if not is_contiguous(rest) or node.args[3] != 1 or not _follows(node, pull):
            continue
        anchor, share = _pull(weights, rest, pull)
        if not is_contiguous(anchor) or shape(anchor) != shape(weights):
            continue
        node.args = (weights, *node.args[1:])
        node.kwargs = {"anchor": anchor, "share": share}
        graph.erase_node(pull)


def _follows(update: Node, pull: Node) -> bool:
    """Whether nothing between the two changes anything, or reads what they change."""
    for node in between(pull, update):
        memory = {root for read in node.all_input_nodes for root in same_memory(read)}
        if is_mutable(node) or memory.intersection(same_memory(pull)):
            return False
    return True


def _pull(weights: Any, change: Node, update: Node) -> tuple[Any, Any]:
    """Anchor a and share s of a change s * (w - a) that `update` subtracts; None for no anchor."""
    away: Any = change
    share: Any = None
    scaled = is_call(change, aten.mul.Tensor) and shape(change.args[1]) == ()
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
        if all(map(is_contiguous, way.args)) and len({shape(arg) for arg in way.args}) == 1:
            put(graph, node, torch.ops.flfast.squared_distance.default, way.args)
