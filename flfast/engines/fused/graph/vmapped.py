"""Vectorises the traced step of one client over a stack of clients, with `torch.func.vmap`.

`programs.py` calls this after `trace.py` and before `rewrite.py`, only for stacks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter

from flfast.engines.fused.graph.trace import record, stand_ins
from flfast.state.vmap_fallback import no_vmap_fallback

aten = torch.ops.aten

_LAYOUTS = {torch.channels_last, torch.channels_last_3d}


def vmap_graph(
    module: GraphModule, single: Sequence[Tensor], shared: Sequence[bool], width: int
) -> GraphModule:
    """The same step for `width` independent clients.

    `module` is the step of one client, and `single` its inputs. Clients have the same inputs where
    `shared` says so; the others get a leading client axis. The width is at least 2.

    Raises:
        RuntimeError: if vmap has no batching rule for an operator.
    """
    axes = tuple(None if same else 0 for same in shared)
    inputs = stand_ins(single, [None if same else width for same in shared])
    run = torch.func.vmap(_VmapInterpreter(module).run_nodes, in_dims=axes, randomness="different")
    # The graph already contains autocast's casts.
    with no_vmap_fallback(), torch.autocast(inputs[0].device.type, enabled=False):
        return record(run, inputs)


class _VmapInterpreter(Interpreter):
    """Runs a graph, and replaces operators that vmap does not know or runs slowly."""

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
        return super().call_function(_REPLACEMENTS.get(target, target), args, kwargs)


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
