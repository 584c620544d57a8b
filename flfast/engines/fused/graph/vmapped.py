"""A traced step of one client as the step of a stack of clients."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter

from flfast.engines.fused.graph.trace import like, record

aten = torch.ops.aten

_LAYOUTS = {torch.channels_last, torch.channels_last_3d}


def stacked(
    module: GraphModule, alone: Sequence[Tensor], shared: Sequence[bool], width: int
) -> GraphModule:
    """The same operators over `width` clients, which see nothing of each other.

    Args:
        module: a client's step as traced.
        alone: its inputs, of one client.
        shared: of every input, whether all clients have the same one; the others get a leading
            client axis.
        width: clients, >= 2.

    Raises:
        RuntimeError: if torch has no way to run an operator for all clients at once.
    """
    axes = tuple(None if same else 0 for same in shared)
    inputs = [
        like(leaf, None if same else width) for leaf, same in zip(alone, shared, strict=True)
    ]
    run = torch.func.vmap(_Stackable(module).run, in_dims=axes, randomness="different")
    functorch: Any = torch._C._functorch  # noqa: SLF001 - it has no other name
    fallback = functorch._is_vmap_fallback_enabled()  # noqa: SLF001
    # Client after client, which vmap would do otherwise, is what a stack is to avoid.
    functorch._set_vmap_fallback_enabled(False)  # noqa: SLF001, FBT003 - torch's own
    try:
        with torch.autocast(inputs[0].device.type, enabled=False):  # it is in the graph
            return record(run, inputs)
    finally:
        functorch._set_vmap_fallback_enabled(fallback)  # noqa: SLF001


class _Stackable(Interpreter):
    """Runs a graph with operators that vmap knows, or knows better, in place of some others."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """One operator."""
        if kwargs.get("memory_format") in _LAYOUTS:
            # vmap keeps what there is; where the next operator needs the other, it copies.
            kwargs = {name: value for name, value in kwargs.items() if name != "memory_format"}
        return super().call_function(_INSTEAD.get(target, target), args, kwargs)


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
    # Targets are classes: nothing is to be ignored, and vmap's own rule has three times the steps.
    return -log_p.gather(1, targets.unsqueeze(1)).squeeze(1), log_p.new_zeros(())


def _nll_loss_backward(
    grad: Tensor,
    log_p: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    reduction: int,
    *rest: Any,
) -> Tensor:
    if weight is not None or reduction or log_p.ndim != 2:
        return aten.nll_loss_backward.default(grad, log_p, targets, weight, reduction, *rest)
    return torch.zeros_like(log_p).scatter(1, targets.unsqueeze(1), -grad.unsqueeze(1))


_INSTEAD: dict[Any, Callable[..., Any]] = {
    aten.addcmul_.default: _addcmul,
    aten.lerp_.Scalar: _lerp,
    aten.addmm.default: _addmm,
    aten.nll_loss_forward.default: _nll_loss,
    aten.nll_loss_backward.default: _nll_loss_backward,
}
