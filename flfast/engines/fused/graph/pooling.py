"""Max-pooling before ReLU, and convolution, 2x2 max-pooling and ReLU as one operator.

`trace.simplified` runs `pool_first` after `rewrite.py` and before `lowering.py`, which calls
`join_convolutions`. ReLU then works on fewer values and gives the same numbers. Three of four
gradients of a convolution before a pool are zero, and torch computes with all of them.
"""

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from flfast.engines.fused.graph.dataflow import calls, is_call, is_plain, put, remove_unused

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
