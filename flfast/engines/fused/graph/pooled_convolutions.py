"""Convolution, 2x2 max-pooling and ReLU as one operator, and their gradients as another.

Three of four gradients of such a convolution's outputs are zero, and torch computes with all of
them. `lowering` calls this after `pooling.py` has put the pool before the ReLU.
"""

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from flfast.engines.fused.graph.dataflow import calls, is_call, is_plain, put

aten = torch.ops.aten


def join_convolutions(graph: Graph) -> None:
    """Join each convolution of stride 1 with the pool and the ReLU that alone read it."""
    for node in calls(graph, aten.max_pool2d_with_indices.default):
        convolution: Any = node.args[0]
        if is_call(convolution, aten.convolution.default) and _fits(convolution, node):
            _join(graph, convolution, node)


def _join(graph: Graph, convolution: Node, pool: Node) -> None:
    """Join one group of operators, if nothing else needs what lies between them."""
    values, indices = (_item(pool, number) for number in (0, 1))
    unpools = [user for user in convolution.users if user is not pool]
    read_by = [*pool.users, *(indices.users if indices else ())]
    if values is None or set(read_by) != {values, *filter(None, [indices]), *unpools}:
        return
    relus = list(values.users)
    if len(relus) != 1 or not is_call(relus[0], aten.relu.default):
        return
    [relu] = relus
    backward = [_gradient(unpool, convolution, relu) for unpool in unpools]
    if None in backward:
        return
    args: Any = convolution.args
    x, w, bias, _, padding, *_ = args
    with graph.inserting_before(pool):
        both = graph.call_function(torch.ops.flfast.conv_pool.default, (x, w, bias, padding))
        y, places = (graph.call_function(operator.getitem, (both, i)) for i in (0, 1))
    y.meta["val"] = relu.meta["val"]
    relu.replace_all_uses_with(y)
    for found in filter(None, backward):
        gradient, g = found
        mask: Any = gradient.args[-1]
        backwards = torch.ops.flfast.conv_pool_backward.default
        put(graph, gradient, backwards, (g, y, places, x, w, padding, mask[0]))


def _fits(convolution: Node, pool: Node) -> bool:
    """Whether the kernels take these operators: float32 on the CPU, channels last, windows 2x2."""
    args: Any = convolution.args
    x, w, bias, stride, _, dilation, transposed, _, groups = args
    windows: Any = pool.args[1:]
    plain = [*stride, *dilation] == [1] * 4 and not transposed and groups == 1
    plain = plain and [*windows] in ([[2, 2]], [[2, 2], []], [[2, 2], [2, 2]])
    leaves: list[Any] = [x, w, *([bias] if bias is not None else [])]
    return plain and all(map(is_plain, leaves)) and all(map(_last, (x, w, pool)))


def _last(node: Any) -> bool:
    """Whether images are stored channels last."""
    value = node.meta["val"]
    images: torch.Tensor = value[0] if isinstance(value, tuple | list) else value
    return images.is_contiguous(memory_format=torch.channels_last)


def _item(node: Node, number: int) -> Node | None:
    """The only `node[number]`."""
    found = [n for n in node.users if is_call(n, operator.getitem) and n.args[1] == number]
    return found[0] if len(found) == 1 else None


def _gradient(unpool: Node, convolution: Node, relu: Node) -> tuple[Node, Any] | None:
    """The backward pass of a convolution behind that of its pool, and the gradient of `relu`."""
    if not is_call(unpool, aten.max_pool2d_with_indices_backward.default):
        return None
    mask: Any = unpool.args[0]
    users = list(unpool.users)
    if len(users) != 1 or not is_call(users[0], aten.convolution_backward.default):
        return None
    same = users[0].args[0] is unpool and users[0].args[1:3] == convolution.args[:2]
    masked = is_call(mask, aten.threshold_backward.default) and mask.args[1:] == (relu, 0)
    return (users[0], mask.args[0]) if same and masked and is_plain(mask.args[0]) else None
