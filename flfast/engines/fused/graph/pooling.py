"""Max-pooling before relu instead of behind it: a fraction of the values, the same numbers."""

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from flfast.engines.fused.graph.dataflow import calls, is_call, remove_unused

aten = torch.ops.aten


def pool_first(graph: Graph) -> None:
    """max_pool(relu(x)) becomes relu(max_pool(x)), and the gradient's mask moves along.

    The largest value of a window stays the largest. Where it is not positive, the windows may
    disagree on its place, but no gradient passes.

    Args:
        graph: a step.
    """
    for node in calls(graph, aten.max_pool2d_with_indices.default):
        relu: Any = node.args[0]
        if is_call(relu, aten.relu.default):
            _swap(graph, relu, node)
    remove_unused(graph)


def _swap(graph: Graph, relu: Node, pool: Node) -> None:
    others = [user for user in relu.users if user is not pool]
    backward = [user for user in others if _is_backward(user, relu)]
    masks = [user for user in others if user not in backward]
    values = [user for user in pool.users if is_call(user, operator.getitem) and user.args[1] == 0]
    if len(values) != 1 or not all(_is_mask(mask, relu, backward) for mask in masks):
        return
    if len(masks) != len(backward):  # without its mask, a gradient needs it
        return
    x: Any = relu.args[0]
    pool.replace_input_with(relu, x)
    with graph.inserting_after(values[0]):
        pooled = graph.call_function(aten.relu.default, (values[0],))
    pooled.meta["val"] = values[0].meta["val"]
    values[0].replace_all_uses_with(pooled, delete_user_cb=lambda user: user is not pooled)
    for mask in masks:
        unpool: Any = mask.args[0]
        with graph.inserting_before(unpool):
            few = graph.call_function(aten.threshold_backward.default, (unpool.args[0], pooled, 0))
        few.meta["val"] = unpool.args[0].meta["val"]
        unpool.args = (few, x, *unpool.args[2:])
        mask.replace_all_uses_with(unpool)
        graph.erase_node(mask)


def _is_backward(node: Node, relu: Node) -> bool:
    """Whether a node spreads gradients over the windows of `relu`, and does no more with it."""
    unpools = is_call(node, aten.max_pool2d_with_indices_backward.default)
    return unpools and node.args[1] is relu and list(node.all_input_nodes).count(relu) == 1


def _is_mask(node: Node, relu: Node, backward: list[Node]) -> bool:
    masks = is_call(node, aten.threshold_backward.default) and node.args[1:] == (relu, 0)
    unpool: Any = node.args[0]
    return masks and unpool in backward and len(unpool.users) == 1
