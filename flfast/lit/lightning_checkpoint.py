"""Checkpoints of a user's module as Lightning writes them: read by programs without flfast."""

import logging
from pathlib import Path

import lightning as L

from flfast.lit.user_module import UserModule

log = logging.getLogger(__name__)


def write_checkpoint(path: Path, model: UserModule) -> None:
    """Write the module's weights, hyperparameters and what its `on_save_checkpoint` adds.

    What cannot be saved, such as a lambda among the hyperparameters, is logged.
    """
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model.cpu()
    model.trainer = trainer
    trainer.strategy.connect(model)
    try:
        trainer.save_checkpoint(path, weights_only=True)
    except Exception as error:  # noqa: BLE001 - of the user's own hook or values
        log.warning("no %s: %s: %s", path.name, type(error).__name__, error)
