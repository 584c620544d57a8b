"""The LightningModule of the eager engine: `fit` is one stage of one client's training."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.client import Context, LocalStage
from flfast.datamodules.batches import Batch
from flfast.datamodules.client_data import ClientDataModule
from flfast.lit.batchnorm import batchnorm_layers, freeze
from flfast.lit.joint_leaves import JointLeaves
from flfast.lit.module_task import Habits
from flfast.lit.predictions import PredictingModule
from flfast.lit.task import LocalTask, surrogate
from flfast.state.injection import asks_for
from flfast.state.optimizer_state import load_optimizer_state
from flfast.state.precision import placed
from flfast.state.tree import Tree, float_type, merge, tree_map, without
from flfast.state.weights import (
    buffers,
    full_copy,
    place_tree,
    read_buffers,
    select_weights,
    write_weights,
)
from flfast.tasks.classification import CLASSIFICATION
from flfast.tasks.task_type import TaskType

_log = logging.getLogger(__name__)


class LocalModule(PredictingModule):
    """A model in local training, with automatic optimization: every Trainer option works.

    `make_optimizer` is for stages without an optimizer of their own.

    Attributes:
        params: the model's parameters by name.
        joint: parameters and buffers that the algorithm trains in addition to the model.
        optimizer_state: initial state of the local optimizer; empty for a fresh one.
        habits: what is known of the model's local training.
    """

    context: Context

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        make_optimizer: Callable[..., Optimizer],
        task_type: TaskType = CLASSIFICATION,
        *,
        freeze_batchnorm: bool = False,
        habits: Habits | None = None,
    ) -> None:
        super().__init__(model, task_type)
        self.algorithm = algorithm
        self.make_optimizer, self.habits = make_optimizer, habits or Habits()
        self.freeze_batchnorm = freeze_batchnorm
        if freeze_batchnorm:
            for _, layer in batchnorm_layers(model):
                layer.requires_grad_(requires_grad=False)
        # Buffers in no tree are constant. DDP would send them to all ranks with every batch.
        sent = buffers(model)
        constant = [name for name, _ in model.named_buffers() if name not in sent]
        self._ddp_params_and_buffers_to_ignore = [f"model.{name}" for name in constant]
        self.params = dict(model.named_parameters())
        self.joint = self._joint_leaves({"params": {}, "buffers": {}})
        self._trainable = {name for name, p in self.params.items() if p.requires_grad}
        self.optimizer_state: Tree = {}
        self._logged = {"val/loss"}

    def of(self, model: nn.Module, algorithm: Algorithm) -> "LocalModule":
        """A module with the same task and optimizer."""
        options: Any = {"freeze_batchnorm": self.freeze_batchnorm, "habits": self.habits}
        return type(self)(model, algorithm, self.make_optimizer, self.task_type, **options)

    def refuse_programs(self, reason: str | None) -> None:
        """Note that the local training is no program, if there is a reason."""
        self.habits = self.habits._replace(unrepeatable=reason)

    @contextmanager
    def fitted(
        self, data: ClientDataModule
    ) -> Iterator[tuple[L.LightningModule, L.LightningDataModule]]:
        """What the Trainer fits to a client's data, and the loaders, within a context."""
        yield self, data

    def read_logged(self) -> dict[str, float]:
        """What the local training has logged, by name; nothing but a user's module logs."""
        return {}

    def begin(self, context: Context, optimizer_state: Tree) -> None:
        """Start the local training of a client at `context.start`.

        `optimizer_state` is by parameter name, and empty for a fresh optimizer.
        """
        self.context, self._stage = context, LocalStage()
        self._contexts: dict[torch.device, Context] = {}
        self.optimizer_state = optimizer_state
        self._write(context.start)
        self.loss_sum = torch.zeros(())
        self.num_seen: Tensor | int = 0
        self.num_examples = 0

    def _write(self, given: Tree) -> None:
        """Write the model's weights, and make the leaves that train beside it anew."""
        names = {name for name, _ in (*self.model.named_parameters(), *self.model.named_buffers())}
        weights = select_weights(given, names.__contains__)
        write_weights(self.model, weights)
        self.joint = self._joint_leaves(without(given, weights))

    def read(self) -> Tree:
        """Copy of the current weights on the CPU, those that train beside the model included."""
        params = {name: full_copy(p) for name, p in self.params.items()}
        own = {"params": params, "buffers": read_buffers(self.model)}
        return merge(own, self.joint.read())

    def begin_stage(self, stage: LocalStage, context: Context) -> None:
        """Start the next stage from the current weights.

        `context` has what earlier measures added up.
        """
        self._stage = stage
        self.context = context._replace(lr=stage.lr * context.lr)
        self._contexts = {}
        if stage.begin is not None:
            self._write(stage.begin(self.read(), self.context))
        trained = self.trained(stage, self.joint.params)
        for name, p in self.all_params.items():
            p.requires_grad_(name in trained)
        self.num_examples = 0

    def end(self, num_examples: int) -> None:
        """End a client's local training, which has used so many different examples.

        Parameters that the last stage did not train become trainable again. Gradients and the
        optimizer, of which the next client has a new one, leave the memory.
        """
        self.num_examples = num_examples
        self.zero_grad()
        vars(self).pop("optimizer", None)
        for name, p in self.params.items():
            p.requires_grad_(name in self._trainable)

    def trained(self, stage: LocalStage, joint: Iterable[str]) -> list[str]:
        """Names of the parameters that a stage trains, joint ones included.

        `personal/NAME` is frozen if the model's parameter `NAME` is.
        """
        frozen = self.params.keys() - self._trainable
        names = [name for name in self.params if name not in frozen]
        names += [name for name in joint if name.rpartition("/")[2] not in frozen]
        return [name for name in names if stage.trains is None or name in stage.trains]

    @property
    def all_params(self) -> dict[str, nn.Parameter]:
        """The model's and the joint parameters by name."""
        return {**self.params, **self.joint.params}

    def _joint_leaves(self, leaves: Tree) -> JointLeaves:
        first = next(iter(self.params.values()))
        return JointLeaves(leaves, dtype=float_type(self.params), device=first.device)

    def configure_optimizers(self) -> Optimizer:
        """A new local optimizer with its initial state."""
        trained = {name: p for name, p in self.all_params.items() if p.requires_grad}
        make = self.optimizer_of(self._stage)
        named = {"names": list(trained)} if asks_for(make, "names") else {}
        return self.begun(make(list(trained.values()), lr=float(self.context.lr), **named))

    def optimizer_of(self, stage: LocalStage) -> Callable[..., Optimizer]:
        """What makes the local optimizer of a stage."""
        return stage.optimizer or self.make_optimizer

    def begun(self, optimizer: Optimizer) -> Optimizer:
        """The optimizer with its initial state, as the one whose state is read afterwards."""
        self.optimizer = optimizer
        if self.optimizer_state:
            trained = [name for name, p in self.all_params.items() if p.requires_grad]
            state = place_tree(self.optimizer_state, self.params, self.device)
            load_optimizer_state(optimizer, state, trained)
        return optimizer

    def on_train_start(self) -> None:
        """Move the context to the model's device, and freeze BatchNorm if configured."""
        self.context = self._placed(self.context, self.device)
        if self.freeze_batchnorm:
            freeze(self.model, frozen=True)

    def _placed(self, context: Context, device: torch.device) -> Context:
        trees = context.trees
        found: dict[str, Any] = {
            name: place_tree(trees[name], self.params, device) for name in trees
        }
        for name in ("facts", "measured"):  # which are never sharded
            found[name] = tree_map(lambda leaf: placed(leaf, device), trees[name])
        return context._replace(**found)

    def on_train_end(self) -> None:
        """Unfreeze BatchNorm: Lightning warns of layers that enter training in eval mode."""
        if self.freeze_batchnorm:
            freeze(self.model, frozen=False)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Local objective of one batch: `loss` [] to differentiate, `mean` [] to report."""
        params = {**self.all_params, **self.joint.buffers_by_name}
        return self._objective(self.model, params, batch, self.context)

    def _objective(
        self, model: nn.Module, params: Tree, batch: Batch, ctx: Context
    ) -> dict[str, Tensor]:
        options: Any = {"example_weights": self.task_type.weights(batch.targets)}
        own_params = params if model is self.model else None
        task = LocalTask(model, self.task_type, model_params=own_params, **options)
        loss = self._loss(task, params, batch, ctx)
        return {"loss": loss * (batch.scale * batch.rank_factor), "mean": loss.detach()}

    def _loss(self, task: LocalTask, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        """The stage's objective, or one that has the stage's gradient."""
        loss, gradient = self.algorithm.objective(self._stage)
        if gradient is not None:
            return surrogate(*gradient(task, params, batch, ctx), params)
        return loss(task, params, batch, ctx)

    def replica_step(
        self, model: nn.Module, batch: Batch, device: torch.device
    ) -> dict[str, Tensor]:
        """`training_step` on another device of the `dp` strategy.

        Args:
            model: copy of the model on that device; its own parameters are not used.
            batch: on that device.
            device: the copy's device. Autograd records the copy of the parameters to it, so that
                their gradients return.
        """
        params = {name: p.to(device) for name, p in self.all_params.items()}
        # Copies, because only the first device updates the joint buffers.
        params |= {n: b.to(device, copy=True) for n, b in self.joint.buffers_by_name.items()}
        if device not in self._contexts:  # copied once per client
            self._contexts[device] = self._placed(self.context, device)
        return self._objective(model, params, batch, self._contexts[device])

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Count examples; the stand-in for an empty part of a batch does not count."""
        if batch.rank_factor:
            self.count(batch, outputs["mean"], self.trainer.current_epoch)

    def count(self, batch: Batch, mean: Tensor | None, epoch: int) -> None:
        """Count a batch's examples, with their mean loss if there is one."""
        if mean is not None:
            num = self.task_type.num_counted(batch.targets)
            self.loss_sum = self.loss_sum.to(mean.device) + mean * num
            self.num_seen = num + self.num_seen
        if epoch == 0:
            self.num_examples += len(batch.targets)

    def add_ranks(self, total: Callable[[list[float]], list[float]]) -> None:
        """Sum the counts over ranks that trained a client together, by the function `total`."""
        totals = total([float(self.loss_sum), float(self.num_seen), self.num_examples])
        self.loss_sum = torch.tensor(totals[0])
        self.num_seen, self.num_examples = round(totals[1]), round(totals[2])

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Apply the algorithm's gradient correction."""
        if self.algorithm.correct is None:
            return
        params = self.all_params
        grads = {name: p.grad for name, p in params.items() if p.grad is not None}
        for name, grad in self.algorithm.correct(grads, params, self.context).items():
            params[name].grad = grad.to(params[name].dtype)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log `val/loss` for callbacks of local training, such as EarlyStopping."""
        loss = LocalTask(self.model, self.task_type, model_params=self.params)(self.params, batch)
        # Averaged over ranks, so that early stopping ends all of them in the same step. They may
        # differ in BatchNorm statistics.
        self.log("val/loss", loss, batch_size=len(batch.targets), sync_dist=True)

    def log(self, name: str, *args: Any, **options: Any) -> None:
        """Log within local training, which no logger of a run hears."""
        if name not in self._logged:
            self._logged.add(name)
            _log.warning(
                "log(%r) of a callback is in trainer.callback_metrics of one client only; columns "
                "of a round are what on_round_trained adds to its row",
                name,
            )
        super().log(name, *args, **options)
