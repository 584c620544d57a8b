"""Evaluation by the steps of a user's LightningModule: what its `test_step` logs over examples."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
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
    results = _ResultCollection(training=False)

    def hook(name: str, *args: Any) -> None:
        call._call_callback_hooks(trainer, f"on_{stage}_{name}", *args)  # noqa: SLF001
        call._call_lightning_module_hook(trainer, f"on_{stage}_{name}", *args)  # noqa: SLF001

    for metric in (part for part in model.modules() if isinstance(part, Metric)):
        metric.reset()
    trainer.validating, trainer.testing = stage == "validation", stage == "test"
    gradients = step == "training_step"  # which it may itself need
    with _evaluating(model, trainer, datamodule, gradients=gradients), on_own_rank(model):
        model.flfast_link.results = results
        hook("start")
        hook("epoch_start")
        for batch_idx, given in enumerate(batches):
            batch = _on_device(model, trainer, given)
            results.batch_size = len(given.targets)
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
    if not overrides(model, "predict_step"):
        return {}
    parts: list[dict[str, Tensor]] = []
    with _evaluating(model, trainer, datamodule, gradients=False):
        for batch_idx, given in enumerate(batches):
            batch = _on_device(model, trainer, given)
            outputs = call_step(model, "predict_step", batch, batch_idx)
            named = outputs if isinstance(outputs, Mapping) else {"prediction": outputs}
            parts.append(
                {n: x.flatten(1).cpu() if x.ndim > 1 else x.cpu() for n, x in named.items()}
            )
    return {name: torch.cat([part[name] for part in parts]) for name in (parts or [{}])[0]}


@contextmanager
def _evaluating(
    model: UserModule, trainer: Any, datamodule: L.LightningDataModule | None, *, gradients: bool
) -> Iterator[None]:
    """The module in evaluation mode, as the Trainer's, with the Trainer's precision."""
    trainer.strategy.connect(model)
    model.trainer = trainer
    trainer._data_connector.attach_datamodule(model, copy(datamodule))  # noqa: SLF001
    precise = trainer.precision_plugin.forward_context()
    with torch.set_grad_enabled(gradients), evaluation_mode(model), precise:
        yield


def _on_device(model: UserModule, trainer: Any, given: Batch) -> Any:
    """The user's own batch on the device, by the hooks that Lightning calls."""
    batch = trainer.precision_plugin.convert_input(given.inputs)
    batch = model._on_before_batch_transfer(batch, dataloader_idx=0)  # noqa: SLF001
    return trainer.strategy.batch_to_device(batch)
