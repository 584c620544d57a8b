"""Loss scaling of `trainer.precision=16-mixed` as functions of tensors, without a host read.

Gradients of float16 activations would underflow. So the loss is multiplied by a scale, and the
gradients are divided by it. A step whose gradients are not finite changes nothing, and lowers the
scale. The numbers are those of `torch.amp.GradScaler`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from flfast.state.precision import widest_float
from flfast.state.tree import Tree, leaves, tree_map


class LossScale(NamedTuple):
    """How the scale begins and changes.

    Its state is a tree: `scale` [] and `steps` [], the number of finite steps in a row, float32.

    Attributes:
        start: the scale of the first step.
        growth: factor of the scale after `interval` finite steps in a row.
        backoff: factor of the scale after a step that was left out.
        interval: see `growth`.
    """

    start: float
    growth: float
    backoff: float
    interval: int

    def empty(self, device: torch.device) -> Tree:
        """The state before the first step."""
        start = torch.full((), self.start, dtype=torch.float32, device=device)
        return {"scale": start, "steps": torch.zeros_like(start)}

    def load(self, state: Tree) -> None:
        """Set a state, or those of a stack, to that before the first step."""
        state["scale"].fill_(self.start)
        state["steps"].zero_()

    def update(self, state: Tree, *, finite: Tensor) -> None:
        """Change the scale after a step; `finite` [] says whether its gradients were."""
        steps, scale = state["steps"] + 1, state["scale"]
        grown = scale * self.growth
        enough = steps == self.interval
        after = torch.where(enough & grown.isfinite(), grown, scale)
        scale.copy_(torch.where(finite, after, scale * self.backoff))
        state["steps"].copy_(torch.where(finite & ~enough, steps, torch.zeros_like(steps)))


def loss_scale(scaler: dict[str, Any]) -> LossScale | None:
    """The loss scale of a `GradScaler` in this state; None if the state is empty: it is off."""
    if not scaler:
        return None
    names = ("scale", "growth_factor", "backoff_factor", "growth_interval")
    return LossScale(*(scaler[name] for name in names))


def unscaled(grads: Tree, scale: Tensor, lr: Tensor | None = None) -> tuple[Tree, Tensor]:
    """Gradients divided by the scale, times `lr` [] if given, and whether all of them are finite.

    The second result is bool [].
    """
    # The largest magnitude is infinite or NaN if any element is; one kernel finds it.
    largest = [torch.linalg.vector_norm(leaf, torch.inf) for leaf in leaves(grads) if leaf.numel()]
    finite = torch.stack([each.float() for each in largest]).isfinite().all()
    inverse = scale.to(widest_float(scale.device)).reciprocal()
    factor = (inverse if lr is None else inverse * lr).float()
    return tree_map(lambda grad: grad * factor, grads), finite


def keep_unless(changed: Tensor, before: Tree, after: Tree) -> None:
    """Write the leaves `before` a step over those `after` it, unless it has changed something."""
    tree_map(lambda old, new: new.copy_(torch.where(changed, new, old)), before, after)
