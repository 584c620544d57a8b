"""A user's LightningModule on trial: one real step of a copy, before the run begins."""

import logging
from collections import deque
from collections.abc import Collection, Iterable
from copy import deepcopy
from typing import Any, NamedTuple, cast

import lightning as L
import torch
from omegaconf import DictConfig

from flfast.config.errors import ConfigError
from flfast.datamodules.client_data import ClientDataModule
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.remote_data import RemoteData
from flfast.engines.evaluation.module_steps import evaluation_step, measured
from flfast.lit.module_hooks import eager_only
from flfast.lit.module_optimizer import ModuleOptimizer
from flfast.lit.own_step_module import training_metrics
from flfast.lit.user_loaders import client_loaders, evaluation_batches
from flfast.lit.user_module import (
    Logged,
    UnknownIndex,
    UserModule,
    call_step,
    column_of,
    loss_of,
    observed,
    overrides,
)
from flfast.setup.plans import choose_precision
from flfast.setup.trial_calls import on_trial
from flfast.setup.user_code import named
from flfast.state.messages import printable
from flfast.state.plan import Batching
from flfast.state.randomness import same_generators
from flfast.state.weights import dtype_of_module

log = logging.getLogger(__name__)


class ModuleTrial(NamedTuple):
    """What a module has shown.

    Attributes:
        optimizer: makes optimizers as the module does.
        logged: names of what it logs in local training, on validation and on test examples.
        logged_in_steps: names of numbers that `training_step` logs.
        monitors: whether a scheduler watches a metric of validation.
        unrepeatable: why its steps are no program; None if they are, as far as it shows.
    """

    optimizer: ModuleOptimizer
    logged: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    logged_in_steps: tuple[str, ...]
    monitors: bool
    unrepeatable: str | None


class _OneStep(L.Callback):
    """Ends training after a batch, and keeps what the module has configured."""

    configured: tuple[Any, ...] = ()
    monitors = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep optimizers and schedulers."""
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self.configured = tuple(trainer.optimizers), tuple(schedulers)
        self.monitors = any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs)

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
    trained = sum(p.requires_grad for p in model.parameters())
    batching = Batching(config.batch_size if config.batch_size != "auto" else 2)
    client = data.client(data.first_client, batching=batching)
    two = client.indices[:2]
    few = ClientDataModule(
        *(data, data.first_client), batching=Batching(2), round_idx=1, indices=two
    )
    last = _OneStep()
    trainer = _trainer(config, last)
    with torch.random.fork_rng(devices=[]), same_generators():
        with named("model", target):
            copy = deepcopy(model)
            dtype, validates = dtype_of_module(copy), overrides(copy, "validation_step")
            loaders = client_loaders(client, deque(), dtype, validates=validates)
            trainer.fit(copy, datamodule=loaders)
            in_training = ("loss", *map(column_of, training_metrics(trainer)))
        with named("model", target):
            validated, tested = (
                (*measured(copy, evaluation_batches(data, two, copy), trainer, validation=part),)
                for part in (True, False)
            )
    optimizer = ModuleOptimizer.of(last.configured, trained)
    _check_optimizer(target, model, optimizer, config)
    names = (in_training, validated, tested)
    if odd := [n for part in names for n in part if n not in printable(n).splitlines()]:
        raise ConfigError(f"model={target}: logs {odd[0]!r}; allowed: names on one line")
    if not validated and not tested:
        step = evaluation_step(model, validation=False)
        what = f"its {step} logs nothing" if step else "it has no test_step or validation_step"
        log.warning("model=%s: %s, so nothing is measured", target, what)
    if not model.automatic_optimization:
        return ModuleTrial(optimizer, names, (), last.monitors, "the module optimizes by hand")
    batch = next(iter(client_loaders(few, deque(), dtype_of_module(model)).train_dataloader()))
    logged, why = _recorded(target, model, batch)
    if why is None and config.engine != "eager" and not eager_only(model):
        _name_eager_columns(target, in_training, logged)
    return ModuleTrial(optimizer, names, tuple(logged), last.monitors, why)


def _check_optimizer(
    target: str, model: UserModule, optimizer: ModuleOptimizer, config: DictConfig
) -> None:
    is_used = config.optimizer["_target_"].endswith(f".{ModuleOptimizer.__name__}")
    if model.automatic_optimization and optimizer.several and is_used:
        raise ConfigError(
            f"model={target}: configure_optimizers gives no optimizer; allowed: one, or optimizer="
        )


def _name_eager_columns(target: str, names: Iterable[str], logged: Collection[str]) -> None:
    """Log which of the names that local training logs are no columns of the fused engine."""
    stems = {name.removesuffix("_step").removesuffix("_epoch") for name in names}
    if missing := sorted(f"train/{name}" for name in stems - {"loss", *logged}):
        what = "only engine=eager has the columns %s: these are no means of what a step logs"
        log.info(f"model=%s: {what}", target, ", ".join(missing))
