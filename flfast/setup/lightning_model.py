"""A `LightningModule` as the model of a run: its forward acts, and its hooks do not."""

import logging
import re

from torch import nn

from flfast.config.errors import ConfigError

log = logging.getLogger(__name__)

_HOOK = re.compile(
    r"(on|configure|optimizer|lr_scheduler)_\w+|\w+_(step|dataloader)|setup|teardown|prepare_data"
    r"|backward|transfer_batch_to_device"
)
"""Names of a module's methods that Lightning's Trainer calls."""

_LEARNING = ("training_step", "configure_optimizers")
"""Without these, a module would train with another loss or optimizer than its author gave it."""


def check_hooks(where: str, model: nn.Module) -> None:
    """Refuse a module that says itself how it trains; name other hooks that are not called.

    Raises:
        ConfigError: naming what the module overrides, and what works.
    """
    hooks = overridden_hooks(model)
    unused = ", ".join(hooks)
    if not {*_LEARNING} & {*hooks}:
        if hooks:
            log.warning("%s: a run calls its forward alone, and not its %s", where, unused)
        return
    parts = [name for name, part in model.named_children() if [*part.parameters()]]
    network = f", such as MODULE.{parts[0]}" if len(parts) == 1 else ""
    raise ConfigError(
        f"{where}: a run would not call its {unused}, and train with another loss or optimizer "
        f"than these; allowed: the network alone, an nn.Module{network}; with optimizer=NAME, and "
        f"if its loss is not that of the task, an algorithm with a loss"
    )


def overridden_hooks(model: nn.Module) -> list[str]:
    """Names of the Trainer's hooks that a module overrides; none if it is no LightningModule."""
    # By name: the package pytorch_lightning has another class of it.
    kinds = type(model).__mro__
    base = next((kind for kind in kinds if kind.__name__ == "LightningModule"), None)
    names = filter(_HOOK.fullmatch, dir(base)) if base else ()
    return [name for name in names if getattr(type(model), name) is not getattr(base, name)]
