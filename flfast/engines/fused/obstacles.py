"""Reasons why the fused engine cannot run a plan, in words for the user.

`training.py` asks before the trial of `agreement.py`. `engine=fused` refuses the plan with the
reason, and `engine=auto` trains eagerly instead.
"""

from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelSummary, ProgressBar
from torch import Tensor

from flfast.algorithms.contract import LocalStage
from flfast.algorithms.contract.downloads import first_downloads, joint_leaves
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.samples import StackedSamples
from flfast.engines.fused.graph.lstm_kernel import has_slow_recurrence
from flfast.engines.fused.graph.update_rules import local_optimizer
from flfast.lit.local_module import LocalModule
from flfast.lit.strategies.dp import DataParallelStrategy
from flfast.lit.trainers import overridden_hooks
from flfast.models.adapters.rounded_base import has_rounded
from flfast.models.recomputed import recomputes
from flfast.state.plan import RoundPlan
from flfast.state.weights import read_weights

# Hooks of one client's fit or local steps. Compiled programs do not call them.
_TRAINING = (
    *("on_train_", "on_fit_", "on_before_", "on_after_", "on_validation_"),
    *("setup", "teardown"),
)


def obstacle(
    plan: RoundPlan, module: LocalModule, data: FederatedDataModule, trainer: L.Trainer
) -> str | None:
    """The first reason why the fused engine cannot run a plan; None if it can."""
    reasons = (
        *_device_obstacles(plan, trainer),
        *_trainer_obstacles(trainer),
        *_training_obstacles(plan, module, data, trainer.strategy.root_device),
    )
    return next(iter(reasons), None)


def _device_obstacles(plan: RoundPlan, trainer: Any) -> Iterator[str]:
    if isinstance(trainer.strategy, DataParallelStrategy) or trainer.world_size > 1:
        shard = f" strategy.shard={plan.shard}" if plan.strategy == "ddp" else ""
        yield f"strategy={plan.strategy}{shard} divides batches over devices"


def _trainer_obstacles(trainer: Any) -> Iterator[str]:
    if trainer.fast_dev_run:
        yield "trainer.fast_dev_run is for single batches"
    if trainer.limit_val_batches:
        yield "trainer.limit_val_batches validates within local training"
    if trainer._detect_anomaly:  # noqa: SLF001 - it has no other name
        yield "trainer.detect_anomaly watches autograd"
    for callback in trainer.callbacks:
        if _has_training_hooks(callback):
            yield f"the callback {type(callback).__name__} has hooks within local training"


def _training_obstacles(
    plan: RoundPlan, module: LocalModule, data: FederatedDataModule, device: torch.device
) -> Iterator[str]:
    if has_slow_recurrence(module.model, plan.precision, device):
        yield (
            f"with trainer.precision={plan.precision} the model has a recurrent layer without a "
            f"kernel, whose positions would be traced one by one"
        )
    yield from _model_obstacles(module)
    if not isinstance(data.examples.inputs, Tensor | StackedSamples) or data.loading.num_workers:
        yield "the data are read by workers"
    try:
        optimizers = [
            local_optimizer(module.optimizer_of(stage)([*module.params.values()], lr=plan.lr))
            for stage in module.algorithm.training_stages or [LocalStage()]
        ]
    except NotImplementedError as error:
        yield str(error)
    else:
        if any(optimizer.counts for optimizer in optimizers) and _averages_some_states(module):
            yield "local_optimizer_state=average shares the step counts of some parameters only"


def _model_obstacles(module: LocalModule) -> Iterator[str]:
    if recomputes(module.model):
        yield "recompute computes layers again, which programs do not"
    if has_rounded(module.model):
        yield "with adapter.base_bits=8, programs would keep floats of all weights of the base"
    if module.habits.unrepeatable is not None:
        yield module.habits.unrepeatable


def _averages_some_states(module: LocalModule) -> bool:
    """Whether a stage trains parameters of which only some have averaged optimizer states."""
    algorithm = module.algorithm
    if algorithm.kit.optimizer is None or not algorithm.stateful:
        return False
    weights = read_weights(module.model)
    broadcast = first_downloads(algorithm, weights)(0)
    joint = joint_leaves(algorithm, weights)["params"]
    stages = (module.trained(stage, joint) for stage in algorithm.training_stages)
    is_sent = ({name in broadcast["params"] for name in names} for names in stages)
    return "optimizer" in broadcast and any(len(values) > 1 for values in is_sent)


def _has_training_hooks(callback: Callback) -> bool:
    """Whether a callback overrides a hook of local training."""
    if isinstance(callback, (ProgressBar, ModelSummary)):
        return False
    return any(name.startswith(_TRAINING) for name in overridden_hooks(callback))
