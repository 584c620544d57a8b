"""Builds a run's loggers; after a resume they continue the old records."""

from collections.abc import Iterable
from typing import Any

from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.wandb import WandbLogger
from omegaconf import DictConfig, OmegaConf

from flfast.checkpoints.folders import Checkpoint
from flfast.config.errors import ConfigError
from flfast.state.messages import first_line

_LOGGER_IDS = {"WandbLogger": "id", "MLFlowLogger": "run_id"}
_WITHOUT_ACCOUNT = {"wandb": "logger.wandb.offline=true"}
"""Settings that make a logger work without a server, by its name."""


def build_loggers(config: DictConfig, checkpoint: Checkpoint | None) -> list[Logger]:
    """The configured loggers; after a resume they continue the old records.

    Raises:
        ConfigError: if one of them cannot open its record, such as without a key of W&B.
    """
    nodes, continued = _logger_nodes(config, checkpoint)
    return [
        _open_logger(name, node, config, new=name not in continued)
        for name, node in nodes.items()
        if node
    ]


def _open_logger(name: str, node: Any, config: DictConfig, *, new: bool) -> Logger:
    """A logger that has opened its record, before training starts."""
    try:
        logger: Any = instantiate(node)
        if new:  # MLflow refuses settings that differ, such as more rounds
            logger.log_hyperparams(OmegaConf.to_container(config, resolve=True))
        elif name in _WITHOUT_ACCOUNT:
            _ = logger.experiment
    except Exception as error:
        instead = _WITHOUT_ACCOUNT.get(name)
        hint = f"; without an account: {instead}" if instead else ""
        what = type(error).__name__
        raise ConfigError(f"logger={name}: {what}: {first_line(error)}{hint}") from error
    return logger


def _logger_nodes(config: DictConfig, checkpoint: Checkpoint | None) -> tuple[Any, set[str]]:
    """Config nodes of the loggers by name, and names of those that continue a record by its id."""
    nodes: Any = OmegaConf.to_container(config.logger, resolve=True) if config.logger else {}
    continued: set[str] = set()
    if checkpoint is None:
        return nodes, continued
    for key, node in nodes.items():
        if not node:
            continue
        name = node["_target_"].rpartition(".")[2]
        run_id = checkpoint.about["loggers"].get(name)
        if name in _LOGGER_IDS and run_id and node.get(_LOGGER_IDS[name]) is None:
            node[_LOGGER_IDS[name]] = run_id
            continued.add(key)
            node |= {"resume": "allow"} if name == "WandbLogger" else {}
        if name == "TensorBoardLogger":  # hides records of rounds after the checkpoint
            node["purge_step"] = checkpoint.round_idx + 1
    return nodes, continued


def end_records(loggers: Iterable[Logger]) -> None:
    """Flush W&B, which otherwise writes at Python's exit, which ranks do not reach."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()
