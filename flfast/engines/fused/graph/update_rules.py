"""torch's optimizers as functions of tensors, so that their update can be traced.

`engines/fused/training.py` translates the optimizer once. The traced step of `local_step.py` runs
its update, and `run/training_state.py` loads and reads its state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from flfast.engines.fused.graph.loss_scale import LossScale
from flfast.state.precision import widest_float
from flfast.state.tree import Tree, leaves, tree_map

Update = Callable[[Tree, Tree, Tree, Tensor], None]
"""(parameters, gradients, state, lr) -> None; changes parameters and state in place."""

SCALE = "loss_scale"
_STEP = "step"


@dataclass(frozen=True)
class LocalOptimizer:
    """The update rule of one torch optimizer, for all parameters at once.

    Attributes:
        slots: names of its buffers; each parameter has one of its own shape per name.
        counts: whether it counts steps. The count is float64, where the device has it,
            because 1 - 0.999 has only five correct digits in float32.
        scaled: whether `update` takes gradients times lr; buffers are then multiples of lr, too.
        update: takes one step.
        loss_scale: changes the scale of the loss, which is part of the state; None: there is none.
    """

    slots: tuple[str, ...]
    counts: bool
    scaled: bool
    update: Update
    loss_scale: LossScale | None = None

    def empty(self, params: Tree) -> Tree:
        """The state before the first step: a tree by slot, then by parameter name."""
        state: Tree = {slot: tree_map(torch.zeros_like, params) for slot in self.slots}
        if self.counts:
            device = next(leaves(params)).device
            state[_STEP] = torch.zeros((), dtype=widest_float(device), device=device)
        if self.loss_scale is not None:
            state[SCALE] = self.loss_scale.empty(next(leaves(params)).device)
        return state

    @torch.no_grad()
    def load(self, state: Tree, saved: Tree, lr: float) -> None:
        """Write an optimizer state into `state`. The loss scale begins anew.

        Args:
            state: as `empty` makes it; changed in place.
            saved: by parameter name, as torch.optim has it; zeros replace what is missing.
            lr: learning rate of the steps to come.
        """
        factor = lr if self.scaled else 1.0
        if zeros := [leaf for slot in self.slots for leaf in state[slot].values()]:
            torch._foreach_zero_(zeros)
        for name, kept in saved.items():
            for slot in self.slots:
                if name in state[slot] and slot in kept:
                    state[slot][name].copy_(kept[slot]).mul_(factor)
        if self.counts:
            trained = (saved[name] for name in state[self.slots[0]] if name in saved)
            state[_STEP].fill_(next((float(leaf[_STEP]) for leaf in trained), 0.0))
        if self.loss_scale is not None:
            self.loss_scale.load(state[SCALE])

    def read(self, state: Tree, names: Sequence[str], lr: float) -> Tree:
        """A copy of a state on the CPU, by parameter name, as torch.optim has it."""
        factor = lr if self.scaled else 1.0
        saved: Tree = {
            name: {slot: state[slot][name].cpu() / factor for slot in self.slots} for name in names
        }
        for by_slot in saved.values() if self.counts else ():
            by_slot[_STEP] = state[_STEP].float().cpu()
        return saved if self.slots else {}


def local_optimizer(optimizer: Optimizer, scale: LossScale | None = None) -> LocalOptimizer:
    """The update rule of a torch optimizer, with its options and the scale of its loss.

    Raises:
        NotImplementedError: if it is not SGD, Adam or AdamW, or uses an option that this file
            does not implement; the message names it.
    """
    if len(optimizer.param_groups) > 1:
        raise NotImplementedError("the optimizer has several parameter groups")
    options = optimizer.param_groups[0]
    for name in ("amsgrad", "dampening", "maximize", "differentiable"):
        if options.get(name):
            raise NotImplementedError(f"optimizer.{name} is implemented by torch.optim only")
    if type(optimizer) is SGD:
        return replace(_sgd(options), loss_scale=scale)
    if type(optimizer) in {Adam, AdamW}:
        # Newer versions of Adam have decoupled weight decay as an option.
        decoupled = type(optimizer) is AdamW or options.get("decoupled_weight_decay", False)
        return replace(_adam(options, decoupled=decoupled), loss_scale=scale)
    name = type(optimizer).__name__
    raise NotImplementedError(f"optimizer {name} is implemented by torch.optim only")


def _sgd(options: dict[str, Any]) -> LocalOptimizer:
    momentum, weight_decay = options["momentum"], options["weight_decay"]

    def update(params: Tree, grads: Tree, state: Tree, lr: Tensor) -> None:
        decay = lr * weight_decay if weight_decay else None
        for name, grad in grads.items():
            p = params[name]
            if not momentum:
                if decay is not None:
                    p.mul_(1 - decay)
                p.sub_(grad)
                continue
            if decay is not None:
                grad = grad + p * decay
            buffer = state["momentum_buffer"][name]
            buffer.mul_(momentum)
            buffer.add_(grad)
            p.sub_(grad + momentum * buffer if options["nesterov"] else buffer)

    slots = ("momentum_buffer",) if momentum else ()
    return LocalOptimizer(slots, counts=False, scaled=True, update=update)


def _adam(options: dict[str, Any], *, decoupled: bool) -> LocalOptimizer:
    beta1, beta2 = options["betas"]
    eps, weight_decay = options["eps"], options["weight_decay"]

    def update(params: Tree, grads: Tree, state: Tree, lr: Tensor) -> None:
        step = state[_STEP]
        step.add_(1)
        size = lr / (1 - beta1**step)
        root = (1 - beta2**step).sqrt()
        for name, grad in grads.items():
            p, mean, square = params[name], state["exp_avg"][name], state["exp_avg_sq"][name]
            if weight_decay and decoupled:
                p.mul_(1 - lr * weight_decay)
            elif weight_decay:
                grad = grad + weight_decay * p
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            p.sub_(mean / (square.sqrt() / root + eps) * size)

    return LocalOptimizer(("exp_avg", "exp_avg_sq"), counts=True, scaled=False, update=update)
