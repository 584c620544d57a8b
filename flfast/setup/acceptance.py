"""The moment from which a folder is that of the run: nothing but its loggers can refuse it."""

from collections.abc import Callable, Iterable
from typing import Any

from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.wandb import WandbLogger
from omegaconf import DictConfig, OmegaConf

from flfast.checkpoints.folders import Checkpoint
from flfast.checkpoints.restore import Restored, write_table
from flfast.config.decision import recorded_config
from flfast.config.errors import ConfigError
from flfast.config.job import HydraJob
from flfast.federation.loop import Federation
from flfast.output.callbacks.clients_table import ClientsTable
from flfast.output.callbacks.events_table import EventsTable
from flfast.output.loggers.csv import RoundCSVLogger
from flfast.output.results.columns import COLUMNS, columns_of
from flfast.output.results.outcome import Result, holds_run, read_result, write_result
from flfast.output.results.run_files import OF_A_RUN, OF_ITS_END, records_aside, remove_files
from flfast.output.results.table import RoundTable
from flfast.state.environment import launch_id
from flfast.state.messages import first_line

_LOGGER_IDS = {"WandbLogger": "id", "MLFlowLogger": "run_id"}
_WITHOUT_ACCOUNT = {"wandb": "logger.wandb.offline=true"}
"""Settings that make a logger work without a server, by its name."""


def accept(
    federation: Federation,
    config: DictConfig,
    job: HydraJob,
    restored: Restored | None,
    make_loggers: Callable[[], list[Logger]],
) -> None:
    """Take over the folder for this run, on rank 0; other ranks write there only afterwards.

    Loggers begin records or databases when they are made, and may refuse, such as without a key:
    then the folder is what it was before. A run that begins replaces the one that the folder
    holds. A run that goes on keeps its rows, and removes the files of an earlier end if rounds
    follow: it may be killed before the next end.
    """
    folder = job.folder
    folder.mkdir(parents=True, exist_ok=True)
    replaces = restored is None and (holds_run(folder) or read_result(folder) is not None)
    with records_aside(folder, kept=not replaces), job.new_settings():
        # Only here: loggers of other ranks would make the same files.
        federation.loggers.extend(make_loggers())
        now = recorded_config(config, folder)
        write_result(folder, Result("running", now, launch=launch_id()))
        if replaces:
            remove_files(folder, OF_A_RUN)
        elif len(federation.history) <= federation.last_round:
            remove_files(folder, OF_ITS_END)
    if restored is None:
        return
    if any(isinstance(logger, RoundCSVLogger) for logger in federation.loggers):
        columns = columns_of(COLUMNS, config.task)
        RoundTable(folder / "metrics.csv", columns).replace(restored.history)
    for callback in federation.callbacks:
        if isinstance(callback, (ClientsTable, EventsTable)):
            write_table(restored, folder, callback.file_name)


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
