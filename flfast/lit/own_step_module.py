"""Local training by the `training_step` of a user's LightningModule, which the Trainer fits."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import lightning as L
import torch
from torch import Tensor

from flfast.algorithms.contract.client import Context
from flfast.datamodules.batches import Batch
from flfast.datamodules.client_data import ClientDataModule
from flfast.lit.local_module import LocalModule
from flfast.lit.module_optimizer import ModuleOptimizer
from flfast.lit.module_task import ModuleTask, SkippedStepError
from flfast.lit.user_loaders import client_loaders
from flfast.lit.user_module import UserModule, column_of, is_evaluated, on_own_rank, user_method
from flfast.state.tree import Tree


class OwnStepModule(LocalModule):
    """See `LocalModule`. Its model is the module that the Trainer fits.

    Attributes:
        facts: of the batches that the Trainer has read, in order; without inputs.
        logged: for each logged value its sum over examples, and over these their number.
    """

    model: UserModule

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.facts: deque[Batch] = deque()
        self.logged: dict[str, tuple[Tensor, int]] = {}
        self._batch: Any = None
        self._facts: Any = None

    @property
    def device(self) -> torch.device:
        """Where the Trainer has put the user's module."""
        return self.model.device

    @contextmanager
    def fitted(
        self, data: ClientDataModule
    ) -> Iterator[tuple[L.LightningModule, L.LightningDataModule]]:
        """The user's module, as a part of this local training."""
        link = self.model.flfast_link
        link.local, link.round_idx = self, data.round_idx
        try:
            with on_own_rank(self.model):
                yield self.model, client_loaders(data, self.facts, self.model)
        finally:
            link.local, link.round_idx = None, 0
            self._log_epochs(training_metrics(self.model.trainer))

    def on_train_start(self) -> None:
        """See `LocalModule`. A client without validation examples has nothing to monitor."""
        super().on_train_start()
        for config in self.model.trainer.lr_scheduler_configs:
            config.strict = False

    def begin(self, context: Context, optimizer_state: Tree) -> None:
        """See `LocalModule`."""
        super().begin(context, optimizer_state)
        self.logged, self._batch = {}, None

    def step(self, batch: Any, batch_idx: int) -> Any:
        """Take a step of the user's own batch; returns what Lightning's loop gets."""
        automatic, epoch = self.model.automatic_optimization, self.model.trainer.current_epoch
        is_new = batch is not self._batch  # an optimizer may take a batch several times
        if is_new:
            self._batch, self._facts = batch, self.facts.popleft()
        facts, own = self._facts, {**self.all_params, **self.joint.buffers_by_name}
        given, loss = facts._replace(inputs=batch), None
        task = ModuleTask(self.model, model_params=own)
        task.batch_idx = batch_idx
        with suppress(SkippedStepError):
            loss = self._loss(task, own, given, self.context) if automatic else task(own, given)
        if is_new:
            self.count(facts, None if loss is None else loss.detach(), epoch)
            for name, value in task.logged.items():
                total, count = self.logged.get(name, (torch.zeros_like(value), 0))
                num = len(facts.targets)
                self.logged[name] = total + value * num, count + num
        if loss is None or not automatic:
            return None if automatic else task.outputs
        extra = task.outputs if isinstance(task.outputs, Mapping) else {}
        return {**extra, "loss": loss * facts.scale}

    def _log_epochs(self, values: Mapping[str, Tensor]) -> None:
        """Note what the last epoch logged in hooks, and metric objects."""
        for name, value in values.items():
            column = column_of(name)
            forked = column.removesuffix("_step").removesuffix("_epoch")
            if not {column, forked} & self.logged.keys():
                self.logged[column] = value.detach(), 1

    def read_logged(self) -> dict[str, float]:
        """Mean of each logged value over the examples of the local training."""
        return {name: float(total) / num for name, (total, num) in self.logged.items()}

    def configured(self) -> Any:
        """What the Trainer gets of `configure_optimizers`."""
        make = self.optimizer_of(self._stage)
        if not isinstance(make, ModuleOptimizer):
            return super().configure_optimizers()
        configured = user_method(self.model, "configure_optimizers")()
        make.adapt(configured, self)
        return configured


def training_metrics(trainer: L.Trainer) -> dict[str, Tensor]:
    """What the last epoch logged by name, without its validation."""
    results = trainer.fit_loop.epoch_loop.val_loop._results  # noqa: SLF001
    others = {result.meta.name for result in results.values()}
    others |= {f"{name}_{end}" for name in others for end in ("step", "epoch")}
    found = trainer.callback_metrics.items()
    return {name: x for name, x in found if name not in others and not is_evaluated(name)}
