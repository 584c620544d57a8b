"""What a model gets of the data, and checks that it can be trained, before any training."""

import inspect
import logging
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torchmetrics import Metric

from flfast.config.errors import ConfigError
from flfast.datamodules.batches import Batch
from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.remote_data import RemoteData
from flfast.lit.batchnorm import freeze
from flfast.setup.trial_calls import RECOMPUTES, on_trial
from flfast.setup.user_code import named, place
from flfast.state.injection import asks_for
from flfast.state.weights import buffers, dtype_of_module

log = logging.getLogger(__name__)


def check_module(where: str, model: nn.Module) -> None:
    """Refuse a model that torch compiled, or with parameters that cannot be trained as they are.

    Raises:
        ConfigError: naming the module or the tensor, and what is allowed.
    """
    for name, module in model.named_modules():
        by = "torch.jit" if isinstance(module, torch.jit.ScriptModule) else ""
        if any(getattr(module, key, None) for key in ("_orig_mod", "_compiled_call_impl")):
            by = "torch.compile"
        if by:
            what = f"{where}: {name or 'the model'}"
            raise ConfigError(f"{what} is compiled by {by}; allowed: the nn.Module itself")
    _check_weights(where, model)
    for name, tensor in _tensors(model):
        if tensor.device.type != "cpu":
            raise ConfigError(
                f"{where}: {name} is on {tensor.device}; allowed: cpu; the run moves the model to "
                f"its devices"
            )


def _check_weights(where: str, model: nn.Module) -> None:
    """Refuse weights that could not be averaged, and hooks that copies would not have."""
    for name, leaf in (*model.named_parameters(), *buffers(model).items()):
        if leaf.is_complex():
            raise ConfigError(
                f"{where}: {name} is complex; allowed: real parameters that forward reads by "
                f"torch.view_as_complex, and for constants persistent=False"
            )
    for name, p in model.named_parameters():
        if p._backward_hooks or p._post_accumulate_grad_hooks:  # noqa: SLF001
            raise ConfigError(
                f"{where}: {name} has a gradient hook, which copies of the model lose; allowed: "
                f"a torch.autograd.Function in forward, or register_full_backward_hook of a layer"
            )


def check_initialized(where: str, model: nn.Module) -> None:
    """Refuse lazy layers whose weights do not exist yet.

    Raises:
        ConfigError: naming the tensor, and what is allowed.
    """
    for name, tensor in _tensors(model):
        if is_lazy(tensor):
            raise ConfigError(
                f"{where}: {name} has no values yet, since its layer is lazy; allowed: a function "
                f"that makes the model, or a model that was called with a batch before"
            )


def check_copies(where: str, model: nn.Module) -> None:
    """Refuse functions that hold on to the model: those of a copy would use the original.

    Raises:
        ConfigError: naming the attribute or the hook, and what is allowed.
    """
    parts = {id(part) for part in (*model.modules(), *model.parameters(), *model.buffers())}
    for path, module in model.named_modules():
        own = {} if isinstance(module, Metric) else vars(module)  # which wraps its functions anew
        for name, value in own.items():
            functions = value.values() if isinstance(value, dict) else [value]
            for function in filter(inspect.isfunction, functions):
                held = inspect.getclosurevars(function).nonlocals.values()
                if any(id(each) in parts for each in held):
                    raise ConfigError(
                        f"{where}: {path or 'the model'} has a function in {name} that holds on "
                        f"to the model, which copies would share; allowed: a method, or a "
                        f"function that makes the model"
                    )


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(model.named_parameters(), model.named_buffers())


def first_batch(data: FederatedDataModule, model: nn.Module) -> Batch:
    """Two examples of client 0, or one twice, with inputs as the model reads them."""
    indices = np.resize(data.train_clients.indices_of(0), 2)
    batch = next(iter(data.eval_loader(indices)))
    inputs = data.examples.transform(batch.inputs, dtype=dtype_of_module(model))
    return batch._replace(inputs=inputs)


def check_outputs(
    where: str,
    model: nn.Module,
    outputs: object,
    data: FederatedDataModule,
    batch: Batch,
    *,
    hint: str = "",
) -> None:
    """Refuse outputs of another shape than the task's; the hint says how to set their number.

    Raises:
        ConfigError: with the shape that it must be.
    """
    found = list(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
    wanted = list(data.examples.task_type.output_shape(batch.targets, data.num_classes))
    if found != wanted:
        is_number = data.examples.task in {"regression", "survival", "forecasting"}
        name = "numbers" if is_number else "logits"
        hint += "; model=unet does" if data.examples.task == "segmentation" else ""
        raise ConfigError(
            f"{where}: forward{place(type(model).forward)} gives {found} for "
            f"{len(batch.inputs)} examples; it must give {name} {['B', *wanted[1:]]}".replace(
                "'", ""
            )
            + hint
        )


def try_training(
    target: str, model: nn.Module, data: FederatedDataModule, *, bn: str
) -> str | None:
    """Compute a gradient in training mode. Weights, buffers and seeds stay as they are.

    Returns:
        Why the model cannot be recorded as a program; None if it can, as far as one call shows.

    Raises:
        ConfigError: if the model raises, its outputs are of another shape, they do not depend on
            a trained parameter, or a weight is NaN or infinite.
    """
    batch = first_batch(data, model)
    reads = f"training mode, inputs of shape {list(data.examples.input_shape)}: model"
    trained = [p for p in model.parameters() if p.requires_grad]
    model.train()
    with on_trial(model) as (trial, noticed), torch.enable_grad(), named(reads, target):
        freeze(trial, frozen=bn == "frozen")
        outputs: Any = trial(batch.inputs)
        check_outputs(f"{reads}={target}", model, outputs, data, batch)
        loss = data.examples.task_type.loss(outputs, batch.targets)
        if not loss.requires_grad:
            raise ConfigError(
                f"{reads}={target}: the outputs have no gradient; allowed: a "
                f"forward{place(type(model).forward)} without detach() and no_grad()"
            )
        try:
            torch.autograd.grad(loss, trained[:1], allow_unused=True)
        except RuntimeError as error:
            if "use_reentrant" not in str(error):  # which needs a whole backward pass
                raise
            noticed.append(RECOMPUTES)
    for name, tensor in _tensors(model) if not torch.isfinite(loss) else ():
        if not torch.isfinite(tensor).all():
            raise ConfigError(
                f"model={target}: {name} has NaN or infinity; allowed: finite weights"
            )
    return f"the model {noticed[0]}, which programs do not" if noticed else None


def check_events(data: FederatedDataModule) -> None:
    """Warn of clients and sets of survival data that have no event, as a loss of 0 tells nothing.

    Raises:
        ConfigError: if no training example has one.
    """
    if data.examples.task != "survival" or isinstance(data, RemoteData):
        return
    train, event = data.splits["train"].only(data.participants), data.examples.targets[:, 1] > 0
    learning = np.unique(train.owner()[event[train.indices].numpy()])
    if not len(learning):
        raise ConfigError(
            f"task=survival: none of {len(train.indices)} training examples has an event, so "
            "there is nothing to learn; allowed: targets of which some have event 1"
        )
    if num := len(data.participants) - len(learning):
        log.warning("%d clients train without an event, so their loss is always 0", num)
    sets = {"central test": data.central_test, "val": data.splits["val"].indices}
    for name, indices in {**sets, "local test": data.splits["test"].indices}.items():
        if len(indices) and not event[indices].any():
            log.warning("the %s set has no event: its loss is 0, its concordance NaN", name)


def model_offers(model: Callable[..., Any], examples: Examples) -> dict[str, Any]:
    """Arguments by name; a model gets the ones that are its parameters.

    - `input_shape`: shape of one input; `num_classes`: C.
    - `task`: the learning task.
    - `num_tokens`: size of the vocabulary of the inputs; 0 if they are no tokens.
    - `categories`: number of categories of each of the last columns of a table.
    - `horizon`: number of steps that `forecasting` predicts; 0 of other tasks.
    """
    offers = {
        "input_shape": examples.input_shape,
        "num_classes": examples.num_classes,
        "task": examples.task,
        "categories": examples.categories,
        "horizon": examples.horizon,
    }
    if not asks_for(model, "num_tokens"):
        return offers
    return {**offers, "num_tokens": _num_tokens(examples)}


def _num_tokens(examples: Examples) -> int:
    if examples.vocabulary is not None:
        return len(examples.vocabulary)
    if examples.task == "language":
        return examples.num_classes
    inputs = examples.inputs
    # Whole numbers of 8 bits are images.
    if not isinstance(inputs, Tensor) or inputs.is_floating_point() or inputs.itemsize == 1:
        return 0
    return int(inputs.max()) + 1
