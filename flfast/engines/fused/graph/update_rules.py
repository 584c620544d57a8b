"""torch's optimizers as functions of tensors, so that an update can be part of a traced step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from flfast.state.tree import Tree, leaves, tree_map

Update = Callable[[Tree, Tree, Tree, Tensor], None]
"""(parameters, gradients, state, lr) -> None; parameters and state are changed in place."""

_STEP = "step"


@dataclass(frozen=True)
class LocalOptimizer:
    """The mathematics of one torch optimizer, over all parameters at once.

    Attributes:
        slots: names of what it keeps for every parameter, each of the parameter's shape.
        counts: whether it counts its steps, in double precision: 1 - 0.999 keeps five digits
            in float32.
        scaled: whether `update` takes gradients times lr; slots then are multiples of lr, too.
        update: one step.
    """

    slots: tuple[str, ...]
    counts: bool
    scaled: bool
    update: Update

    def empty(self, params: Tree) -> Tree:
        """State before the first step: a tree by slot, then by parameter name."""
        state: Tree = {slot: tree_map(torch.zeros_like, params) for slot in self.slots}
        if self.counts:
            device = next(leaves(params)).device
            state[_STEP] = torch.zeros((), dtype=torch.float64, device=device)
        return state

    @torch.no_grad()
    def load(self, state: Tree, found: Tree, lr: float) -> None:
        """Write `found`, by parameter name as torch.optim has it, into a state; {} is empty."""
        factor = lr if self.scaled else 1.0
        for slot in self.slots:
            for name, leaf in state[slot].items():
                value = found.get(name, {}).get(slot)
                leaf.zero_() if value is None else leaf.copy_(value).mul_(factor)
        if self.counts:
            trained = (found[name] for name in state[self.slots[0]] if name in found)
            state[_STEP].fill_(next((float(own[_STEP]) for own in trained), 0.0))

    def read(self, state: Tree, names: Sequence[str], lr: float) -> Tree:
        """A copy of a state by parameter name, as torch.optim has it."""
        factor = lr if self.scaled else 1.0
        found: Tree = {
            name: {slot: state[slot][name].cpu() / factor for slot in self.slots} for name in names
        }
        for own in found.values() if self.counts else ():
            own[_STEP] = state[_STEP].float().cpu()
        return found if self.slots else {}


def local_optimizer(optimizer: Optimizer) -> LocalOptimizer:
    """The mathematics of a torch optimizer with its options.

    Raises:
        NotImplementedError: if it is none of SGD, Adam and AdamW, or uses an option of theirs
            that is not written here; the message says which.
    """
    if len(optimizer.param_groups) > 1:
        raise NotImplementedError("the optimizer has several parameter groups")
    options = optimizer.param_groups[0]
    for name in ("amsgrad", "dampening", "maximize", "differentiable"):
        if options.get(name):
            raise NotImplementedError(f"optimizer.{name} is only known to torch.optim")
    if type(optimizer) is SGD:
        return _sgd(options)
    if type(optimizer) in {Adam, AdamW}:
        # Adam learned to decouple weight decay; AdamW always did.
        decoupled = type(optimizer) is AdamW or options.get("decoupled_weight_decay", False)
        return _adam(options, decoupled=decoupled)
    raise NotImplementedError(f"optimizer {type(optimizer).__name__} is only known to torch.optim")


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
