"""Vectorises the traced step of one client over a stack of clients, with `torch.func.vmap`.

`programs.py` calls this after `trace.py` and before `rewrite.py`, only for stacks.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node

from flfast.engines.fused.graph import unfolded
from flfast.engines.fused.graph.dataflow import (
    calls,
    changes_between,
    is_call,
    is_mutable,
    put,
    shape,
)
from flfast.engines.fused.graph.trace import record, stand_ins
from flfast.state.vmap_fallback import no_vmap_fallback

aten = torch.ops.aten

_LAYOUTS = {torch.channels_last, torch.channels_last_3d}


def vmap_graph(
    module: GraphModule,
    single: Sequence[Tensor],
    shared: Sequence[bool],
    width: int,
    *,
    unfold: bool = False,
) -> GraphModule:
    """The same step for `width` independent clients.

    `module` is the step of one client, and may be changed; `single` are its inputs. Clients have
    the same inputs where `shared` says so; the others get a leading client axis. The width is at
    least 2. With `unfold`, convolutions become batched products; otherwise they have groups.

    Raises:
        RuntimeError: if vmap has no batching rule for an operator.
    """
    axes = tuple(None if same else 0 for same in shared)
    inputs = stand_ins(single, [None if same else width for same in shared])
    _leave_out_strides(module.graph)
    interpreter = _VmapInterpreter(module, _REPLACEMENTS | (_UNFOLDED if unfold else {}))
    run = torch.func.vmap(interpreter.run_nodes, in_dims=axes, randomness="different")
    # The graph already contains autocast's casts.
    with no_vmap_fallback(), torch.autocast(inputs[0].device.type, enabled=False):
        return record(run, inputs)


def _leave_out_strides(graph: Graph) -> None:
    """Leave out operators that only set strides of axes of size 1; vmap has no rule for them.

    Global pooling of images that are channels last, as in ResNets, has one in its forward pass.
    Its backward pass copies the gradient into such strides.
    """
    for node in calls(graph, aten.as_strided_.default):
        x: Any = node.args[0]
        if shape(x) == shape(node) and _same_memory(x, node):
            node.replace_all_uses_with(x)
            graph.erase_node(node)
    for node in calls(graph, aten.copy_.default):
        args: Any = node.args
        view, source, *_ = args
        if not node.users and is_call(view, aten.as_strided.default) and [*view.users] == [node]:
            _leave_out_copy(graph, node, source)


def _leave_out_copy(graph: Graph, copy: Node, source: Any) -> None:
    """Read a copied gradient from its source, if the copy fills new memory and has its strides."""
    view: Any = copy.args[0]
    memory: Any = view.args[0]
    others = [user for user in memory.users if user is not view]
    reads = all(is_call(user, aten.as_strided.default) and copy < user for user in others)
    reads = reads and not any(
        map(is_mutable, (reader for user in others for reader in user.users))
    )
    if not (reads and is_call(memory, aten.new_zeros.default)):
        return
    if shape(source) != shape(view) or math.prod(shape(view)) != math.prod(shape(memory)):
        return
    if any(not _same_memory(view, user) or changes_between(copy, user) for user in others):
        return
    for user in others:
        put(graph, user, aten.reshape.default, (source, [*shape(user)]))
    for node in (copy, view, memory):
        graph.erase_node(node)


def _same_memory(left: Node, right: Node) -> bool:
    """Whether two views of one memory have the same elements in the same order."""
    return _layout(left.meta["val"]) == _layout(right.meta["val"])


def _layout(value: Tensor) -> tuple[Any, ...]:
    """Sizes and strides of the axes that are longer than 1, then the place in memory."""
    pairs = zip(value.shape, value.stride(), strict=True)
    return *(pair for pair in pairs if pair[0] > 1), value.storage_offset()


class _VmapInterpreter(Interpreter):
    """Runs a graph, and replaces operators that vmap does not know or runs slowly."""

    def __init__(self, module: GraphModule, replacements: dict[Any, Callable[..., Any]]) -> None:
        super().__init__(module)
        self._replacements = replacements

    def run_nodes(self, *inputs: Tensor) -> Any:
        """Like `run`, but without tqdm.

        Forked processes share tqdm's lock: if one is killed while it has the lock, as a rank or a
        packed job may be, all others wait for it forever.
        """
        self.env, self.args_iter = {}, iter(inputs)
        for node in self.graph.nodes:
            self.env[node] = self.run_node(node)
        return self.env[self.graph.output_node()]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator."""
        if kwargs.get("memory_format") in _LAYOUTS:
            # vmap cannot change layouts. Operators that need another layout copy on their own.
            kwargs = {name: value for name, value in kwargs.items() if name != "memory_format"}
        return super().call_function(self._replacements.get(target, target), args, kwargs)


def _addcmul(x: Tensor, left: Tensor, right: Tensor, *, value: float = 1) -> Tensor:
    return x.add_(left * right, alpha=value)


def _lerp(x: Tensor, end: Tensor, weight: float) -> Tensor:
    return x.add_(end - x, alpha=weight)


def _addmm(
    bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    if beta == alpha == 1:
        return left.mm(right) + bias
    return aten.addmm.default(bias, left, right, beta=beta, alpha=alpha)


def _nll_loss(
    log_p: Tensor, targets: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[Tensor, Tensor]:
    if weight is not None or reduction or log_p.ndim != 2:
        return aten.nll_loss_forward.default(log_p, targets, weight, reduction, ignored)
    # Targets are classes, so `ignored` never occurs. vmap's own rule has three times as many
    # operators.
    return -log_p.gather(1, targets.unsqueeze(1)).squeeze(1), log_p.new_zeros(())


def _nll_loss_backward(
    grad: Tensor, log_p: Tensor, targets: Tensor, weight: Tensor | None, reduction: int, *rest: Any
) -> Tensor:
    if weight is not None or reduction or log_p.ndim != 2:
        return aten.nll_loss_backward.default(grad, log_p, targets, weight, reduction, *rest)
    return torch.zeros_like(log_p).scatter(1, targets.unsqueeze(1), -grad.unsqueeze(1))


_REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    aten.addcmul_.default: _addcmul,
    aten.lerp_.Scalar: _lerp,
    aten.addmm.default: _addmm,
    aten.nll_loss_forward.default: _nll_loss,
    aten.nll_loss_backward.default: _nll_loss_backward,
}

_UNFOLDED: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: unfolded.convolution,
    aten.convolution_backward.default: unfolded.convolution_backward,
}
