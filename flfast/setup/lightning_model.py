"""A user's `LightningModule` as the model of a run, and what of it is not called."""

import inspect
import logging

import lightning as L
import torch
from torch import nn

from flfast.config.errors import ConfigError
from flfast.lit.module_hooks import overridden, table_of
from flfast.lit.user_module import UserModule, adopt
from flfast.setup.callbacks import refusal
from flfast.setup.model_check import check_initialized, check_module
from flfast.setup.user_code import named

log = logging.getLogger(__name__)


def prepared(where: str, module: L.LightningModule) -> UserModule:
    """The module, in place, as one that a run can train; its layers are made once.

    Raises:
        ConfigError: if it overrides what is refused, or cannot be trained as it is.
    """
    check_overrides(where, module)
    with named(*where.split("=", 1)):
        module.setup("fit")
        module.configure_model()
        for callback in module.configure_callbacks() or ():
            if (why := refusal(callback)) is not None:
                raise ConfigError(f"{where}: configure_callbacks: {type(callback).__name__}: {why}")
    _without_compiling(where, module)
    check_module(where, module)
    check_initialized(where, module)
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError(f"{where}: has no parameters to train")
    return adopt(module.train())


def check_overrides(where: str, module: L.LightningModule | L.LightningDataModule) -> None:
    """Refuse what a module overrides and a run cannot call; name what it does not call.

    Raises:
        ConfigError: naming the method, and the reason.
    """
    table = table_of(module)
    for name in overridden(module, table.refused):
        raise ConfigError(f"{where}: its {name} is not called: {table.refused[name]}")
    step = getattr(module, "training_step", None)
    if step is not None and "dataloader_iter" in inspect.signature(step).parameters:
        raise ConfigError(f"{where}: training_step(dataloader_iter); allowed: (batch, batch_idx)")
    unused = [f"{name} ({table.uncalled[name]})" for name in overridden(module, table.uncalled)]
    if unused:
        log.warning("%s: these are not called: %s", where, ", ".join(unused))


def check_forward_alone(where: str, model: nn.Module) -> None:
    """Name the hooks of a LightningModule without a `training_step`, which is a plain network.

    Raises:
        ConfigError: if it is a LightningModule of another package, with a `training_step`.
    """
    # By name: the package pytorch_lightning has another class of it.
    kinds = type(model).__mro__
    base = next((kind for kind in kinds if kind.__name__ == "LightningModule"), None)
    if base is None:
        return
    table = table_of(L.LightningModule())
    hooks = table.honoured | table.eager_only | table.once | table.uncalled.keys()
    unused = [name for name in sorted(hooks) if getattr(kinds[0], name) is not getattr(base, name)]
    if "training_step" in unused:
        raise ConfigError(
            f"{where}: is a LightningModule of the package {base.__module__.partition('.')[0]}; "
            f"allowed: of lightning.pytorch, by `import lightning.pytorch as pl`"
        )
    if unused:
        log.warning(
            "%s: has no training_step, so a run calls its forward alone, and not its %s",
            *(where, ", ".join(unused)),
        )


def _without_compiling(where: str, module: nn.Module) -> None:
    """Take torch.compile away, which would rename weights, from what the module's hooks compiled."""
    compiled = [name for name, part in module.named_modules() if hasattr(part, "_orig_mod")]
    for name in compiled:
        module.set_submodule(name, module.get_submodule(f"{name}._orig_mod"))
    if compiled:
        log.warning("%s: torch.compile of %s is left out", where, ", ".join(compiled))
