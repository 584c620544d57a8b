"""Evaluation by the steps of a user's LightningModule: what its `test_step` logs over examples."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from copy import copy, deepcopy
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from torch import Tensor
from torchmetrics import Metric

from flfast.datamodules.batches import Batch
from flfast.lit.task import evaluation_mode
from flfast.lit.user_module import (
    UserModule,
    call_step,
    column_of,
    loss_of,
    on_own_rank,
    overrides,
)
from flfast.tasks.task_type import Statistics


def evaluation_step(model: UserModule, *, validation: bool) -> str | None:
    """The step that evaluates: of test examples `test_step`, else the other, else the training's.

    None if the only one trains by hand.
    """
    steps = ["validation_step", "test_step"] if validation else ["test_step", "validation_step"]
    last = "training_step" if model.automatic_optimization else None
    return next((step for step in steps if overrides(model, step)), last)


def without_traces(model: UserModule) -> UserModule:
    """A module whose evaluation leaves nothing in the given one.

    A training step may count, or draw random numbers, in Python. Where it evaluates, this is a
    copy with the same parameters, unless the module cannot be copied.
    """
    steps = {evaluation_step(model, validation=validation) for validation in (True, False)}
    if "training_step" in steps:
        with suppress(Exception):
            return deepcopy(model, {id(p): p for p in model.parameters()})
    return model


def measured(
    model: UserModule,
    batches: Iterable[Batch],
    trainer: Any,
    *,
    datamodule: L.LightningDataModule | None = None,
    validation: bool = False,
) -> dict[str, float]:
    """What a module measures on examples, by name, in evaluation mode on the Trainer's device.

    Hooks and reductions are Lightning's. Metric objects are over these examples alone.

    Args:
        model: with the weights to measure.
        batches: their inputs are the user's own batches.
        trainer: its callbacks, precision and device count.
        datamodule: the user's own, whose hooks move batches to the device.
        validation: whether these are validation examples.
    """
    step = evaluation_step(model, validation=validation)
    if step is None:
        return {}
    stage = "validation" if step == "validation_step" else "test"
    _connect(model, trainer, datamodule)
    model.flfast_link.results = results = _ResultCollection(training=False)

    def hook(name: str, *args: Any) -> None:
        call._call_callback_hooks(trainer, f"on_{stage}_{name}", *args)  # noqa: SLF001
        call._call_lightning_module_hook(trainer, f"on_{stage}_{name}", *args)  # noqa: SLF001

    for metric in (part for part in model.modules() if isinstance(part, Metric)):
        metric.reset()
    trainer.validating, trainer.testing = stage == "validation", stage == "test"
    precision = trainer.precision_plugin
    with ExitStack() as stack:
        gradients = torch.set_grad_enabled(step == "training_step")  # which it may itself need
        for context in (gradients, evaluation_mode(model), on_own_rank(model)):
            stack.enter_context(context)
        stack.enter_context(precision.test_step_context())
        hook("start")
        hook("epoch_start")
        for batch_idx, one in enumerate(batches):
            batch = _on_device(model, trainer, one)
            results.batch_size = len(one.targets)
            hook("batch_start", batch, batch_idx)
            model._current_fx_name = step  # noqa: SLF001
            outputs = call_step(model, step, batch, batch_idx)
            if step == "training_step" and (loss := loss_of(outputs)) is not None:
                model.log("loss", loss.detach())
            hook("batch_end", outputs, batch, batch_idx)
        hook("epoch_end")
        hook("end")
        found = results.metrics(on_step=False)["callback"]
    model.flfast_link.results = None
    trainer.validating = trainer.testing = False
    results.reset()
    return {column_of(name): float(value) for name, value in found.items()}


def predicted(
    model: UserModule,
    batches: Iterable[Batch],
    trainer: Any,
    *,
    datamodule: L.LightningDataModule | None = None,
) -> Statistics:
    """What a module's own `predict_step` returns for examples, on the CPU; see `measured`.

    Tensors with a row for each example, by their names in a dict, else `prediction`; nothing of a
    module without such a step.
    """
    parts: list[dict[str, Tensor]] = []
    if not overrides(model, "predict_step"):
        return {}
    _connect(model, trainer, datamodule)
    with torch.no_grad(), evaluation_mode(model), trainer.precision_plugin.predict_step_context():
        for batch_idx, one in enumerate(batches):
            batch = _on_device(model, trainer, one)
            outputs = call_step(model, "predict_step", batch, batch_idx)
            named = outputs if isinstance(outputs, Mapping) else {"prediction": outputs}
            parts.append(
                {n: x.flatten(1).cpu() if x.ndim > 1 else x.cpu() for n, x in named.items()}
            )
    return {name: torch.cat([part[name] for part in parts]) for name in (parts or [{}])[0]}


def _connect(model: UserModule, trainer: Any, datamodule: L.LightningDataModule | None) -> None:
    trainer.strategy.connect(model)
    model.trainer = trainer
    trainer._data_connector.attach_datamodule(model, copy(datamodule))  # noqa: SLF001


def _on_device(model: UserModule, trainer: Any, one: Batch) -> Any:
    """The user's own batch on the device, by the hooks that Lightning calls."""
    batch = trainer.precision_plugin.convert_input(one.inputs)
    batch = model._on_before_batch_transfer(batch, dataloader_idx=0)  # noqa: SLF001
    return trainer.strategy.batch_to_device(batch)
