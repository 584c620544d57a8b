"""A user's LightningModule on trial: one real step of a copy, before the run begins."""

import logging
from collections import deque
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple, cast

import lightning as L
import torch
from omegaconf import DictConfig
from torchmetrics import Metric, MetricCollection

from flfast.config.errors import ConfigError
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.remote_data import RemoteData
from flfast.engines.evaluation.module_steps import evaluation_step, measured
from flfast.lit.module_optimizer import ModuleOptimizer
from flfast.lit.module_task import UnknownIndex
from flfast.lit.own_step_module import training_metrics
from flfast.lit.user_loaders import client_loaders, evaluation_batches
from flfast.lit.user_module import (
    Logged,
    UserModule,
    call_step,
    column_of,
    loss_of,
    observed,
)
from flfast.setup.lightning_model import hook_in_steps
from flfast.setup.plans import choose_precision
from flfast.setup.trial_calls import changed_attributes, on_trial
from flfast.setup.user_code import named
from flfast.state.messages import printable
from flfast.state.plan import Batching
from flfast.state.randomness import same_generators
from flfast.tasks.task_type import TaskType

log = logging.getLogger(__name__)


Names = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Of logged values: in local training, on validation examples, on test examples."""


class ModuleTrial(NamedTuple):
    """What a module has shown.

    Attributes:
        optimizer: makes optimizers as the module does.
        logged: names of what it logs.
        monitored: names of what it logs on validation examples, as it writes them.
        logged_in_steps: names of numbers that `training_step` logs.
        monitors: whether a scheduler watches a metric of validation.
        unrepeatable: why its local training is no program; None if it is, as far as it shows.
    """

    optimizer: ModuleOptimizer
    logged: Names
    monitored: tuple[str, ...]
    logged_in_steps: tuple[str, ...]
    monitors: bool
    unrepeatable: str | None

    def on(self, task_type: TaskType) -> TaskType:
        """The task with the names that the module logs."""
        return replace(task_type, logged=self.logged, monitored=self.monitored)


class _OneStep(L.Callback):
    """Ends training after a batch, and keeps what the module has configured."""

    optimizer: ModuleOptimizer
    monitors: bool

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep optimizers and schedulers, before a step of the module's changes their rates."""
        schedulers = trainer.lr_scheduler_configs
        trained = sum(p.requires_grad for p in pl_module.parameters())
        self.optimizer = ModuleOptimizer.of([*trainer.optimizers, *schedulers], trained)
        self.monitors = any(config.reduce_on_plateau for config in schedulers)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        """End the training."""
        trainer.should_stop = True


def _trainer(config: DictConfig, last: _OneStep) -> L.Trainer:
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return L.Trainer(
        accelerator="cpu",
        devices=1,
        precision=cast(Any, choose_precision(config)),
        max_epochs=config.local_epochs or -1,
        max_steps=config.local_steps or -1,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        inference_mode=False,
        callbacks=[last],
        **cast(Any, dict.fromkeys(quiet, False)),
    )


def _recorded(target: str, model: UserModule, batch: Any) -> tuple[Logged, str | None]:
    """The numbers that a step logs without metric objects, and why it is no program, if so."""
    logged: Logged = {}
    why = None
    with named("model", target), on_trial(model) as (copied, noticed), torch.enable_grad():
        trial = cast(UserModule, copied.train())
        try:
            with observed(trial, logged, silent=True, recorded=True):
                loss = loss_of(call_step(trial, "training_step", batch, UnknownIndex()))
            if loss is not None and loss.isnan():
                why = "the loss is NaN without metric objects, which programs leave out"
        except NotImplementedError as error:
            why = str(error)
    if noticed and why is None:
        why = f"the model {noticed[0]}, which programs do not"
    return {name: value for name, value in logged.items() if not value.isnan()}, why


def try_module(
    target: str, model: UserModule, data: FederatedDataModule, config: DictConfig
) -> ModuleTrial:
    """Train a copy of the module for a batch of the first client, and evaluate it on two examples.

    Raises:
        ConfigError: with the user's own lines, if the module raises.
    """
    if isinstance(data, RemoteData):
        target = f"{target}, tried by the server with samples of ones"
    batching = Batching(config.batch_size if config.batch_size != "auto" else 2)
    client = data.client(data.first_client, batching=batching)
    two, last = client.indices[:2], _OneStep()
    trainer = _trainer(config, last)
    with torch.random.fork_rng(devices=[]), same_generators(), named("model", target):
        copy = deepcopy(model)
        loaders = client_loaders(client, deque(), copy)
        trainer.fit(copy, datamodule=loaders)
        in_training = ("loss", *map(column_of, training_metrics(trainer)))
        kept = ", ".join(_kept(model, copy))
        validated = (
            *measured(copy, evaluation_batches(data, two, copy), trainer, validation=True),
        )
        monitored = (*sorted(copy.flfast_link.names),)
        tested = (*measured(copy, evaluation_batches(data, two, copy), trainer),)
    names = (in_training, validated, tested)
    _check(target, model, last.optimizer, names, config)
    if kept:
        what = "which no checkpoint of the run has; allowed: a buffer, which is also averaged"
        log.info("model=%s: local training changes %s, %s", target, kept, what)
    why = hook_in_steps(model, data.examples.datamodule)
    if not model.automatic_optimization:
        why = "the module optimizes by hand"
    logged: Logged = {}
    if why is None:
        logged, why = _recorded(target, model, next(iter(loaders.train_dataloader())))
    stems = {name.removesuffix("_step").removesuffix("_epoch") for name in in_training}
    missing = sorted(f"train/{name}" for name in stems - {"loss", *logged})
    if missing and why is None and config.engine != "eager":
        what = "only engine=eager has the columns %s: these are no means of what a step logs"
        log.info(f"model=%s: {what}", target, ", ".join(missing))
    return ModuleTrial(last.optimizer, names, monitored, tuple(logged), last.monitors, why)


def _check(
    target: str, model: UserModule, made: ModuleOptimizer, names: Names, config: DictConfig
) -> None:
    """Refuse what a module configures or logs; warn if it measures nothing."""
    is_used = config.optimizer["_target_"].endswith(f".{ModuleOptimizer.__name__}")
    if model.automatic_optimization and made.several and is_used:
        raise ConfigError(
            f"model={target}: configure_optimizers gives no optimizer; allowed: one, or optimizer="
        )
    if odd := [n for part in names for n in part if n not in printable(n).splitlines()]:
        raise ConfigError(f"model={target}: logs {odd[0]!r}; allowed: names on one line")
    if not any(names[1:]):
        step = evaluation_step(model, validation=False)
        what = f"its {step} logs nothing" if step else "it has no test_step or validation_step"
        log.warning("model=%s: %s, so nothing is measured", target, what)


def _kept(model: UserModule, trained: UserModule) -> Iterator[str]:
    """Attributes that training has changed, other than weights, metric objects and Lightning's."""
    lightnings = vars(L.LightningModule()).keys() | {"_hparams"}  # which it makes when it is read
    for name in changed_attributes(model, trained):
        path, _, last = name.rpartition(".")
        part = trained.get_submodule(path)
        if last not in lightnings and not isinstance(part, (Metric, MetricCollection)):
            yield name
