"""Moves max-pooling before ReLU, which then works on fewer values and gives the same numbers.

`trace.simplified` runs this after `rewrite.py` and before `lowering.py`.
"""

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from flfast.engines.fused.graph.dataflow import calls, is_call, remove_unused

aten = torch.ops.aten


def pool_first(graph: Graph) -> None:
    """Turn max_pool(relu(x)) into relu(max_pool(x)), and move the mask of the gradient with it.

    ReLU keeps the largest value of a window the largest. If that value is not positive, the two
    forms may choose different positions, but ReLU lets no gradient pass there.
    """
    for node in calls(graph, aten.max_pool2d_with_indices.default):
        relu: Any = node.args[0]
        if is_call(relu, aten.relu.default):
            _swap(graph, relu, node)
    remove_unused(graph)


def _swap(graph: Graph, relu: Node, pool: Node) -> None:
    """Swap one pair, if nothing else depends on the order."""
    others = [user for user in relu.users if user is not pool]
    backward = [user for user in others if _is_backward(user, relu)]
    masks = [user for user in others if user not in backward]
    values = [user for user in pool.users if is_call(user, operator.getitem) and user.args[1] == 0]
    if len(values) != 1 or not all(_is_mask(mask, relu, backward) for mask in masks):
        return
    if len(masks) != len(backward):  # a gradient without a mask needs the relu's own values
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
            grad = graph.call_function(
                aten.threshold_backward.default, (unpool.args[0], pooled, 0)
            )
        grad.meta["val"] = unpool.args[0].meta["val"]
        unpool.args = (grad, x, *unpool.args[2:])
        mask.replace_all_uses_with(unpool)
        graph.erase_node(mask)


def _is_backward(node: Node, relu: Node) -> bool:
    """Whether a node is the backward pass of pooling `relu`, and reads `relu` once."""
    unpools = is_call(node, aten.max_pool2d_with_indices_backward.default)
    return unpools and node.args[1] is relu and list(node.all_input_nodes).count(relu) == 1


def _is_mask(node: Node, relu: Node, backward: list[Node]) -> bool:
    """Whether a node masks the gradient of one of the `backward` nodes with `relu`."""
    masks = is_call(node, aten.threshold_backward.default) and node.args[1:] == (relu, 0)
    unpool: Any = node.args[0]
    return masks and unpool in backward and len(unpool.users) == 1
