"""Replaces operators of a traced step by our C++ kernels where those are faster.

After the kernels of products come proximal terms in a single pass over the weights: the pull
towards an anchor, and the distance. What is left of elementwise operators is joined last.
"""

import math
import operator
from collections.abc import Collection
from functools import partial
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
    is_plain,
    put,
    remove_unused,
    same_memory,
    shape,
    transposed,
)
from flfast.engines.fused.graph.pointwise import join_pointwise
from flfast.engines.fused.graph.pooling import join_convolutions
from flfast.state.native.compiler import missing

aten = torch.ops.aten

MOST_ROWS = 64
"""Batches of more rows stay with torch's products, which are as fast (measured on AVX-512)."""

MOST_LOGITS = 1024
"""Batches of more logits stay with torch's cross-entropy. At 64 x 16 logits our kernels take 9 µs
and torch's 13, at 64 x 100 ours take 31 and torch's 19."""

_SUMS = (aten.addmm.default,)
_PRODUCTS = (aten.mm.default, aten.bmm.default)
_LOG_SOFTMAX = aten._log_softmax.default  # noqa: SLF001 - its name in torch
_LOG_SOFTMAX_BACKWARD = aten._log_softmax_backward_data.default  # noqa: SLF001 - likewise
_UPDATES = (aten.addmm_.default, aten.baddbmm_.default)


def lower(graph: Graph, skip: Collection[str] = ()) -> None:
    """Replace products of few rows, and pooled convolutions, by our kernels.

    The kernels use one core. With several threads, or where they cannot be compiled, the graph
    stays as it is.

    Args:
        graph: graph of a step, after `rewrite`; changed in place.
        skip: passes of `skipped_passes.py` that are left out.
    """
    found = any(is_plain(node) for node in calls(graph, *_SUMS, *_PRODUCTS, *_UPDATES))
    if torch.get_num_threads() > 1 or not found or missing() is not None:
        return
    for node in calls(graph, *_SUMS, *_PRODUCTS):
        _forward(graph, node) or _backward(graph, node)
    for node in calls(graph, *_UPDATES):
        _update(graph, node)
    for node in calls(graph, aten.sub_.Tensor, aten.add_.Tensor):
        _update_bias(graph, node)
    for node in calls(graph, aten.nll_loss_forward.default):
        _cross_entropy(graph, node)
    for name, join in (
        ("convolutions", join_convolutions),
        ("pulls", join_pulls),
        ("pulls", measure_distances),
        ("pointwise", partial(join_pointwise, most_rows=MOST_ROWS)),
    ):
        if name not in skip:
            join(graph)
    remove_unused(graph)
    graph.lint()


def _forward(graph: Graph, node: Node) -> bool:
    """Replace x @ w.T + bias, and a relu that follows, by `linear`; whether it was possible."""
    bias, x, w = _operands(node)
    weight = transposed(w)
    if weight is None or node.kwargs or not _fit(x, weight):
        return False
    if bias is not None and not (is_plain(bias) and shape(bias) == shape(weight)[:-1]):
        return False
    relu = _only_user(node, aten.relu.default)
    put(graph, relu or node, torch.ops.flfast.linear.default, (x, weight, bias, relu is not None))
    return True


def _backward(graph: Graph, node: Node) -> bool:
    """Replace g @ w, and a relu's mask, by `input_gradient`; whether it was possible."""
    bias, g, weight = _operands(node)
    if bias is not None or not _fit(g, weight) or transposed(weight) is not None:
        return False
    mask = _only_user(node, aten.threshold_backward.default)
    active, last = None, node
    if mask is not None and mask.args[0] is node and mask.args[2] == 0 and is_plain(mask.args[1]):
        active, last = mask.args[1], mask
    put(graph, last, torch.ops.flfast.input_gradient.default, (g, weight, active))
    return True


def _update(graph: Graph, node: Node) -> None:
    """Replace w = beta * w + alpha * g.T @ x by `weight_update_`."""
    args: Any = node.args
    w, columns, x = args
    g = transposed(columns)
    if g is not None and _fit(x, w) and is_plain(g):
        options: Any = node.kwargs
        factors = (float(options.get(name, 1)) for name in ("beta", "alpha"))
        put(graph, node, torch.ops.flfast.weight_update_.default, (w, g, x, *factors))


def _update_bias(graph: Graph, node: Node) -> None:
    """Replace bias += or -= the sum over a gradient's rows by `bias_update_`."""
    args: Any = node.args
    bias, total = args
    while is_call(total, aten.view.default, aten.squeeze.dim) and len(total.users) == 1:
        total = total.args[0]
    if node.kwargs or not is_call(total, aten.sum.dim_IntList) or not is_plain(bias):
        return
    g, dims, *_ = total.args
    if not is_plain(g) or shape(bias) != (*shape(g)[:-2], shape(g)[-1]):
        return
    if shape(g)[-2] > MOST_ROWS:
        return
    if len(dims) == 1 and dims[0] in {len(shape(g)) - 2, -2} and "dtype" not in total.kwargs:
        alpha = -1.0 if node.target is aten.sub_.Tensor else 1.0
        put(graph, node, torch.ops.flfast.bias_update_.default, (bias, g, alpha))


def _cross_entropy(graph: Graph, node: Node) -> None:
    """Replace cross-entropy and its gradient by kernels that keep the softmax, not its log."""
    args: Any = node.args
    scores, targets, weight, reduction, _ = args
    if not is_plain(scores) or not is_call(scores, _LOG_SOFTMAX):
        return
    if weight is not None or reduction:
        return
    logits, dim, _ = scores.args
    if len(shape(scores)) != 2 or dim not in {1, -1} or math.prod(shape(scores)) > MOST_LOGITS:
        return
    others = [user for user in scores.users if user is not node]
    gradients = [user for user in others if is_call(user, _LOG_SOFTMAX_BACKWARD)]
    inner: list[Any] = [gradient.args[0] for gradient in gradients]
    of_losses = all(is_call(user, aten.nll_loss_backward.default) for user in inner)
    if (
        not of_losses
        or set(others) != {*gradients, *inner}
        or any(len(n.users) > 1 for n in inner)
    ):
        return
    with graph.inserting_before(node):
        both = graph.call_function(torch.ops.flfast.cross_entropy.default, (logits, targets))
        losses, shares = (graph.call_function(operator.getitem, (both, i)) for i in (0, 1))
    for user in [user for user in node.users if user.args[1] == 0]:
        user.replace_all_uses_with(losses)
    for gradient, of_loss in zip(gradients, inner, strict=True):
        of_logits = torch.ops.flfast.cross_entropy_gradient.default
        put(graph, gradient, of_logits, (of_loss.args[0], shares, targets))


def _operands(node: Node) -> list[Any]:
    """The operands of a product: bias or None, left, right."""
    return list(node.args) if node.target in _SUMS else [None, *node.args]


def _fit(rows: Any, weight: Any) -> bool:
    """Whether a kernel takes these operands: contiguous weights, and not too many rows."""
    plain = is_contiguous(weight) and is_plain(rows)
    return plain and shape(rows)[-2] <= MOST_ROWS and len(shape(rows)) == len(shape(weight))


def _only_user(node: Node, target: Any) -> Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is target else None


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
