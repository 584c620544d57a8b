"""The local step as a function of tensors: objective, gradient, correction, clipping, update.

`engines/fused/training.py` makes one `LocalStep` per stage. `programs.py` never runs it directly
in training: `trace.py` records the operators that it runs, and these are compiled. So nothing here
may depend on the values of tensors, and a step draws no numbers from Python.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_unflatten

from flfast.algorithms.contract import Context, LocalStage
from flfast.datamodules.batches import Batch
from flfast.engines.fused.graph.loss_scale import keep_unless, unscaled
from flfast.engines.fused.graph.update_rules import SCALE, LocalOptimizer
from flfast.lit.local_module import LocalModule
from flfast.lit.module_task import local_task
from flfast.lit.task import LocalTask
from flfast.state.tree import Tree, leaves, tree_map

LEAF = "inputs."
"""Beginning of the names of a sample's tensors in a batch."""


class Clip(NamedTuple):
    """Gradient clipping by `trainer.gradient_clip_val` and `trainer.gradient_clip_algorithm`.

    Attributes:
        limit: largest norm over all parameters, or largest absolute value; 0 is off.
        by_value: clamp every value instead of scaling by the norm.
    """

    limit: float = 0.0
    by_value: bool = False


NO_CLIP = Clip()


class LocalStep:
    """One client's local step. Its methods change the state in place and nothing else.

    They take four trees of tensors:

    - state: `params`, `buffers`, `optimizer`, `loss` [], what a module logs by name in `logged`,
      and with micro-batches `grads`.
    - context: `server`, `client`, `start`, `facts`, `measured`, as in `Context`.
    - settings: `lr` [], float64.
    - batch: `inputs` [B, ...], or of a user's samples one tensor each, named `LEAF` and a number;
      `targets` [B, ...]; `weights` [B], which sum to one and are zero for padding; `num` [], the
      number of examples without padding; `share` [], the weight of a micro-batch in its local
      step.

    Args:
        module: model in training mode, algorithm and task.
        optimizer: gives the update.
        stage: stage of local training; `trains` names the parameters.
        joint: leaves that train beside the model, `{"params": ..., "buffers": ...}`.
        clip: gradient clipping.
        structure: of the samples of a user's module; None: inputs are one tensor.
    """

    def __init__(
        self,
        module: LocalModule,
        optimizer: LocalOptimizer,
        *,
        stage: LocalStage,
        joint: Tree,
        clip: Clip = NO_CLIP,
        structure: TreeSpec | None = None,
    ) -> None:
        self.model, self.algorithm = module.model, module.algorithm
        self.task_type, self.optimizer, self.clip = module.task_type, optimizer, clip
        self.trained, self.joint, self.stage = list(stage.trains or ()), joint, stage
        self.logged, self._structure = module.habits.logged_in_steps, structure
        self._with_gradient: list[str] = []

    def whole(self, state: Tree, context: Tree, settings: Tree, batch: Tree) -> None:
        """Take a local step of one batch."""
        # The gradient of lr * loss costs nothing extra. Multiplying the gradient by lr would
        # read and write all of it once more.
        exact = all(p.dtype in {torch.float32, torch.float64} for p in state["params"].values())
        changes = self.algorithm.correct is not None or bool(self.clip.limit)
        scaled = exact and self.optimizer.scaled and not changes
        # A loss scale may overflow: it is divided by before lr is applied.
        folded = scaled and self.optimizer.loss_scale is None
        factor = settings["lr"] if folded else self._scale(state)
        factor = torch.ones_like(settings["lr"]) if factor is None else factor
        grads = self._gradients(state, context, settings, batch, factor=factor)
        self._update(state, context, settings, grads, scaled=scaled)

    def accumulate(self, state: Tree, context: Tree, settings: Tree, batch: Tree) -> None:
        """Add a micro-batch's gradient to `state["grads"]`, times its share and the loss scale."""
        scale = self._scale(state)
        factor = batch["share"] if scale is None else batch["share"] * scale
        grads = self._gradients(state, context, settings, batch, factor=factor)
        for name, grad in grads.items():
            state["grads"][name].add_(grad)

    def gradients(self, state: Tree, context: Tree, settings: Tree, batch: Tree) -> Tree:
        """A micro-batch's gradient, times its share, by name; `state` needs no `grads`."""
        return self._gradients(state, context, settings, batch, factor=batch["share"])

    def apply(self, state: Tree, context: Tree, settings: Tree, batch: Tree) -> None:
        """Take the step with the accumulated gradient, and reset it.

        `accumulate` must be traced before, because it finds which parameters have a gradient.
        """
        # Like torch.optim, do not update parameters that the objective does not use.
        grads = {name: state["grads"][name] for name in self._with_gradient}
        self._update(state, context, settings, grads, scaled=False)
        for grad in state["grads"].values():
            grad.zero_()

    def _scale(self, state: Tree) -> Tensor | None:
        """The loss scale, [], if there is one."""
        if self.optimizer.loss_scale is None:
            return None
        scale: Tensor = state["optimizer"][SCALE]["scale"]
        return scale

    def _gradients(
        self, state: Tree, context: Tree, settings: Tree, batch: Tree, *, factor: Tensor
    ) -> Tree:
        """Gradients of `factor` times the objective; adds the loss to `state["loss"]`."""
        joint_buffers = {name: state["buffers"][name] for name in self.joint["buffers"]}
        model_buffers = {n: b for n, b in state["buffers"].items() if n not in joint_buffers}
        weights = self.task_type.weights(batch["targets"], batch["weights"])
        task = local_task(
            self.model, self.task_type, buffers=model_buffers, example_weights=weights
        )
        ctx = _context(context, settings)
        with torch.enable_grad():
            params = {
                name: p.detach().requires_grad_(name in self.trained)
                for name, p in state["params"].items()
            }
            examples = Batch(self._inputs(batch), batch["targets"])
            loss, by_name = self._gradient(task, params, joint_buffers, examples, ctx, factor)
        num = batch["num"]
        if self.task_type.counts is not None:
            counted = self.task_type.num_counted(batch["targets"], batch["weights"])
            num = torch.as_tensor(counted).to(num.dtype)
        state["loss"].addcmul_(loss.detach(), num)
        for name, total in state.get("logged", {}).items():
            total.addcmul_(task.logged[name].to(total.dtype), num)
        self._with_gradient = list(by_name)
        return by_name

    def _inputs(self, batch: Tree) -> Any:
        """The inputs, or the user's own batch."""
        if self._structure is None:
            return batch["inputs"]
        found = [batch[f"{LEAF}{place}"] for place in range(self._structure.num_leaves)]
        return tree_unflatten(found, self._structure)

    def _gradient(
        self,
        task: LocalTask,
        params: Tree,
        joint_buffers: Tree,
        examples: Batch,
        ctx: Context,
        factor: Tensor,
    ) -> tuple[Tensor, Tree]:
        """The loss, and `factor` times its gradient by name."""
        given = {**params, **joint_buffers}
        objective, gradient = self.algorithm.objective(self.stage)
        if gradient is not None:
            loss, grads = gradient(task, given, examples, ctx)
            scale = factor.to(loss.dtype)
            return loss, {n: grads[n].detach() * scale for n in self.trained if n in grads}
        loss = objective(task, given, examples, ctx)
        trained = [params[name] for name in self.trained]
        found = torch.autograd.grad(loss, trained, factor.to(loss.dtype), allow_unused=True)
        pairs = zip(self.trained, found, strict=True)
        return loss, {name: grad for name, grad in pairs if grad is not None}

    def _update(
        self, state: Tree, context: Tree, settings: Tree, grads: Tree, *, scaled: bool
    ) -> None:
        """Correct and clip gradients, and update parameters; `scaled` gradients include lr.

        With a loss scale, gradients that are not finite update nothing but the scale.
        """
        if self.optimizer.loss_scale is None:
            self._take(state, context, settings, grads, scaled=scaled)
            return
        optimizer = {name: part for name, part in state["optimizer"].items() if name != SCALE}
        trained = {name: state["params"][name] for name in self.trained}
        changed: Tree = {"params": trained, "optimizer": optimizer}
        before = tree_map(torch.clone, changed)
        of_loss = state["optimizer"][SCALE]
        grads, finite = unscaled(grads, of_loss["scale"], settings["lr"] if scaled else None)
        self._take(state, context, settings, grads, scaled=scaled)
        keep_unless(finite, before, changed)
        self.optimizer.loss_scale.update(of_loss, finite=finite)

    def _take(
        self, state: Tree, context: Tree, settings: Tree, grads: Tree, *, scaled: bool
    ) -> None:
        """Correct and clip gradients, and update parameters; see `_update`."""
        params, lr = state["params"], settings["lr"]
        if self.algorithm.correct is not None:
            corrected = self.algorithm.correct(grads, params, _context(context, settings))
            grads = {**grads, **corrected}
        grads = _clipped(grads, self.clip)
        if self.optimizer.scaled and not scaled:
            grads = tree_map(lambda grad: grad * lr, grads)
        self.optimizer.update(params, grads, state["optimizer"], lr)


def _context(context: Tree, settings: Tree) -> Context:
    return Context(**context, lr=settings["lr"], generator=_no_generator)


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
