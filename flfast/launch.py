"""Starting the ranks of a run: TorchElastic, inside of Hydra's job, or a world that is there."""

import datetime
import logging
import signal
from typing import Any

import torch
import torch.distributed as dist
from hydra.core.singleton import Singleton
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from flfast.config.errors import ConfigError
from flfast.experiment import run_experiment
from flfast.lit.devices import choose_devices, num_devices
from flfast.lit.world import ALONE, World, launched_world

log = logging.getLogger(__name__)


def run(config: DictConfig) -> float | None:
    """Run a checked config in as many processes as its strategy asks for.

    Returns:
        `optimized_metric` after the last round.

    Raises:
        ConfigError: if a setting cannot be run, or a rank dies.
    """
    world = launched_world()
    if world is not None:
        return _in_world(config, world)
    size = num_ranks(config)
    return _launch(config, size) if size > 1 else run_experiment(config, ALONE)


def num_ranks(config: DictConfig) -> int:
    """Processes that the strategy needs on this machine."""
    if config.strategy.name != "ddp":
        return 1
    try:
        devices = OmegaConf.to_container(config.trainer, resolve=True)["devices"]  # type: ignore[index,call-overload]
        return num_devices(choose_devices(config.trainer.accelerator, devices))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _launch(config: DictConfig, size: int) -> float | None:
    # A forked rank starts in a fraction of a second, a spawned one imports everything anew; but
    # neither CUDA nor a pool of threads survives a fork.
    forkable = not torch.cuda.is_initialized() and config.threads == 1
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id="flfast",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork" if forkable else "spawn",
        max_restarts=0,
        monitor_interval=0.1,
    )
    torch.set_num_threads(config.threads)
    try:
        results = elastic_launch(settings, _rank)(config, Singleton.get_state())
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        message = failure.message if isinstance(failure.message, str) else str(failure.message)
        raise ConfigError(f"rank {rank} of {size} died: {message.splitlines()[-1]}") from error
    result = results[0]
    if isinstance(result, str):
        raise ConfigError(result)
    return result


def _rank(config: DictConfig, hydra_state: Any) -> float | str | None:
    """What every launched process runs; an error for the user comes back as its message."""
    # Ctrl-C reaches every process of the terminal; the agent stops the ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Singleton.set_state(hydra_state)  # a spawned process knows nothing of Hydra's job
    world = launched_world()
    assert world is not None
    try:
        return _in_world(config, world)
    except ConfigError as error:
        return str(error)


def _in_world(config: DictConfig, world: World) -> float | None:
    rank_zero_only.rank = world.rank  # type: ignore[attr-defined]
    if world.rank:
        logging.getLogger().setLevel(logging.ERROR)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        timeout = config.strategy.get("timeout_s", 1800)
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
    return run_experiment(config, world)
