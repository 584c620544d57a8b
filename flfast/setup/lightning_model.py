"""A user's `LightningModule` as the model of a run, and what of it is not called."""

import logging
from inspect import signature

import lightning as L
import torch
from omegaconf import DictConfig
from torch import nn

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.own_steps import refused_by
from flfast.config.errors import ConfigError
from flfast.lit.module_hooks import CALLED, MODULE, eager_only, overridden, table_of
from flfast.lit.user_module import UserModule, adopt
from flfast.setup.callbacks import refusal
from flfast.setup.model_check import check_initialized, check_module
from flfast.setup.user_code import named
from flfast.state.tree import Tree

log = logging.getLogger(__name__)


def prepared(where: str, module: L.LightningModule) -> UserModule:
    """The module, in place, set up once, as one that a run can train.

    Raises:
        ConfigError: if it cannot be trained as it is.
    """
    name_uncalled(where, module)
    if on_object := sorted(vars(module).keys() & vars(UserModule).keys() - vars(object).keys()):
        raise ConfigError(f"{where}: {on_object[0]} is set on the object; allowed: on its class")
    if overridden(module, ["configure_sharded_model"]):
        raise ConfigError(f"{where}: configure_sharded_model; allowed: configure_model")
    if "dataloader_iter" in signature(module.training_step).parameters:
        raise ConfigError(f"{where}: training_step(dataloader_iter); allowed: (batch, batch_idx)")
    with named(*where.split("=", 1)):
        _set_up(where, module)
        callbacks = module.configure_callbacks() or []
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        if (why := refusal(callback)) is not None:
            raise ConfigError(f"{where}: configure_callbacks: {type(callback).__name__}: {why}")
    _leave_out_compilation(where, module)
    check_module(where, module)
    check_initialized(where, module)
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError(f"{where}: has no parameters to train")
    return adopt(module.train())


def _set_up(where: str, module: L.LightningModule) -> None:
    try:
        module.setup("fit")
        module.configure_model()
    except RuntimeError as error:
        if "attached to a `Trainer`" not in str(error):
            raise
        raise ConfigError(
            f"{where}: setup or configure_model reads self.trainer, and there is none yet; "
            f"allowed: reading it in configure_optimizers, or in on_fit_start"
        ) from None


def _leave_out_compilation(where: str, module: L.LightningModule) -> None:
    for name in [name for name, part in module.named_modules() if hasattr(part, "_orig_mod")]:
        module.set_submodule(name, module.get_submodule(f"{name}._orig_mod"))
        log.info("%s: torch.compile of %s is left out, since it renames weights", where, name)
    for name, part in module.named_modules():
        if getattr(part, "_compiled_call_impl", None) is not None:
            part._compiled_call_impl = None  # noqa: SLF001 - torch has no name for it
            log.info("%s: torch.compile of %s is left out", where, name or "the module")


def check_types(where: str, module: UserModule, precision: str) -> None:
    """Refuse parameters of another data type than the run's, which Lightning would not change.

    Raises:
        ConfigError: naming the parameter.
    """
    for name, p in module.named_parameters():
        if p.dtype != torch.float32 and precision in {"32-true", "16-mixed", "bf16-mixed"}:
            raise ConfigError(
                f"{where}: {name} is {p.dtype}, and trainer.precision={precision} trains float32; "
                f"allowed: trainer.precision=64-true, or parameters of float32"
            )


def name_uncalled(where: str, module: L.LightningModule | L.LightningDataModule) -> None:
    """Log what a module overrides and no run calls."""
    for why, names in table_of(module).items():
        if why not in CALLED and (unused := overridden(module, names)):
            log.info("%s: not called: %s, since %s", where, ", ".join(unused), why)


def hook_in_steps(model: UserModule, data: L.LightningDataModule | None) -> str | None:
    """A clause about a hook within local steps; logs what of a user's DataModule is not called."""
    found = [f"the module has its own {name}" for name in eager_only(model)]
    if data is not None:
        name_uncalled(f"data={type(data).__name__}", data)
        found += [f"the DataModule has its own {name}" for name in eager_only(data)]
    return next(iter(found), None)


_BY_HAND = {
    "gradient_clip_val": ((None, 0), "null, and self.clip_gradients(...) in its step"),
    "accumulate_grad_batches": ((None, 1), "1, and optimizer.step() after several batches"),
}
"""Options of the Trainer that Lightning refuses, what is no such option, and what is allowed."""


def check_steps(
    algorithm: Algorithm, initial: Tree, config: DictConfig, *, by_hand: bool, several: bool
) -> None:
    """Refuse what acts within steps of several optimizers, or taken by hand.

    Raises:
        ConfigError: naming the setting.
    """
    how = "optimizes by hand" if by_hand else "has several optimizers, or none"
    for name, (off, allowed) in _BY_HAND.items():
        if by_hand and (value := config.trainer.get(name)) not in off:
            raise ConfigError(f"trainer.{name}={value}: the module {how}; allowed: {allowed}")
    if (by_hand or several) and (why := refused_by(algorithm, initial)):
        if (state := config.local_optimizer_state) != "reset":
            raise ConfigError(f"local_optimizer_state={state}: the module {how}; allowed: reset")
        raise ConfigError(
            f"algorithm={algorithm.name} {why}, and the module {how}; allowed: fedavg, or another "
            f"that sees only start and end of local training"
        )


def check_forward_alone(where: str, model: nn.Module) -> None:
    """Log the hooks of a LightningModule without a `training_step`; refuse another package's."""
    if isinstance(model, L.LightningModule):
        if unused := overridden(model, frozenset().union(*MODULE.values())):
            log.warning("%s: its forward alone is called, not %s", where, ", ".join(unused))
    elif "LightningModule" in {kind.__name__ for kind in type(model).__mro__}:
        raise ConfigError(
            f"{where}: a LightningModule of pytorch_lightning; allowed: one of lightning.pytorch"
        )
