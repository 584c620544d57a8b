"""The local step as a function of tensors alone: objective, gradient, correction, update."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from flfast.algorithms.algorithm import Algorithm, Context
from flfast.datamodules.batches import Batch
from flfast.engines.fused.graph.update_rules import LocalOptimizer
from flfast.lit.task import LocalTask
from flfast.state.tree import Tree, leaves, tree_map

Step = Callable[[Tree, Tree, Tree, Tree], None]
"""(state, context, settings, batch) -> None; the state is changed in place."""


class Clip(NamedTuple):
    """Gradient clipping, as `trainer.gradient_clip_val` and `_algorithm` ask for it.

    Attributes:
        limit: of the norm over all parameters, or of every value; 0 is off.
        by_value: clamp values instead of scaling the norm.
    """

    limit: float = 0.0
    by_value: bool = False


NO_CLIP = Clip()


class LocalStep:
    """Pure functions of one client's local step; every tree's leaves are tensors.

    - state: `params`, `buffers`, `optimizer`, `loss` [], and with
      micro-batches `grads`.
    - context: `server`, `client`, `start`, as an algorithm's `Context` has them.
    - settings: `lr` [], float64.
    - batch: `inputs` [b, ...], `targets` int64 [b], `weights` [b] that sum to one and are zero
      for padding, `num` [] examples without padding, `share` [] of the local step.

    Args:
        model: in training mode.
        algorithm: gives objective and gradient correction.
        optimizer: the update.
        trained: names of parameters.
        joint: leaves beside the model's, `{"params": ..., "buffers": ...}`.
        clip: gradient clipping.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        optimizer: LocalOptimizer,
        *,
        trained: list[str],
        joint: Tree,
        clip: Clip = NO_CLIP,
    ) -> None:
        self.model, self.algorithm, self.optimizer, self.clip = model, algorithm, optimizer, clip
        self.trained, self.joint = trained, joint
        self._reached: list[str] = []

    def whole(self, state: Tree, context: Tree, settings: Tree, batch: Tree) -> None:
        """A local step of one batch."""
        # A gradient of lr * loss costs nothing; a gradient times lr passes over it once more.
        exact = all(p.dtype in {torch.float32, torch.float64} for p in state["params"].values())
        linear = exact and self.optimizer.scaled and not self._changes_gradients
        seed = settings["lr"] if linear else torch.ones_like(settings["lr"])
        grads = self._gradients(state, context, settings, batch, seed=seed)
        self._update(state, context, settings, grads, scaled=linear)

    def accumulate(self, state: Tree, context: Tree, settings: Tree, batch: Tree) -> None:
        """Add a micro-batch's share of the gradient to `state["grads"]`."""
        grads = self._gradients(state, context, settings, batch, seed=batch["share"])
        for name, grad in grads.items():
            state["grads"][name].add_(grad)

    def apply(self, state: Tree, context: Tree, settings: Tree, batch: Tree) -> None:
        """Take the step with the gradient accumulated, and begin a new one; traced last."""
        # torch.optim leaves parameters alone that the objective does not reach.
        grads = {name: state["grads"][name] for name in self._reached}
        self._update(state, context, settings, grads, scaled=False)
        for grad in state["grads"].values():
            grad.zero_()

    @property
    def _changes_gradients(self) -> bool:
        return self.algorithm.correct is not None or bool(self.clip.limit)

    def _gradients(
        self, state: Tree, context: Tree, settings: Tree, batch: Tree, *, seed: Tensor
    ) -> Tree:
        own = {n: b for n, b in state["buffers"].items() if n not in self.joint["buffers"]}
        beside = {name: state["buffers"][name] for name in self.joint["buffers"]}
        task = LocalTask(self.model, buffers=own, weights=batch["weights"])
        ctx = _context(context, settings)
        with torch.enable_grad():
            params = {
                name: p.detach().requires_grad_(name in self.trained)
                for name, p in state["params"].items()
            }
            examples = Batch(batch["inputs"], batch["targets"])
            loss = self.algorithm.loss(task, {**params, **beside}, examples, ctx)
            wanted = [params[name] for name in self.trained]
            grads = torch.autograd.grad(loss, wanted, seed.to(loss.dtype), allow_unused=True)
        state["loss"].addcmul_(loss.detach(), batch["num"])
        pairs = zip(self.trained, grads, strict=True)
        found = {name: grad for name, grad in pairs if grad is not None}
        self._reached = list(found)
        return found

    def _update(
        self, state: Tree, context: Tree, settings: Tree, grads: Tree, *, scaled: bool
    ) -> None:
        params, lr = state["params"], settings["lr"]
        if self.algorithm.correct is not None:
            corrected = self.algorithm.correct(grads, params, _context(context, settings))
            grads = {**grads, **corrected}
        grads = _clipped(grads, self.clip)
        if self.optimizer.scaled and not scaled:
            grads = tree_map(lambda grad: grad * lr, grads)
        self.optimizer.update(params, grads, state["optimizer"], lr)


def _context(context: Tree, settings: Tree) -> Context:
    return Context(
        context["server"], context["client"], context["start"], settings["lr"], _no_generator
    )


def _no_generator(purpose: str) -> torch.Generator:
    raise NotImplementedError("a local step that draws from the context's generator is eager only")


def _clipped(grads: Tree, clip: Clip) -> Tree:
    if not clip.limit:
        return grads
    if clip.by_value:
        return {name: grad.clamp(-clip.limit, clip.limit) for name, grad in grads.items()}
    norms = [torch.linalg.vector_norm(grad) for grad in leaves(grads)]
    total = torch.linalg.vector_norm(torch.stack(norms))
    factor = (clip.limit / (total + 1e-6)).clamp(max=1.0)
    return {name: grad * factor for name, grad in grads.items()}
