"""Starting the ranks of a run: TorchElastic, inside of Hydra's job, or a world that is there."""

import datetime
import logging
import sys
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log, setup_globals
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from flfast.building import choose_strategy
from flfast.config.errors import ConfigError, OneRankError
from flfast.config.phases import Phase
from flfast.experiment import run_experiment, together
from flfast.joining import fit_to_world
from flfast.lit.devices import num_devices
from flfast.lit.world import ALONE, World, gather, launched_world

log = logging.getLogger(__name__)


def run(phases: list[Phase]) -> float | None:
    """Run a checked config in as many processes as its strategies ask for, started once.

    Args:
        phases: of the run, composed and checked.

    Returns:
        `optimized_metric` after the last round.

    Raises:
        ConfigError: if a setting cannot be run, or a rank dies; of a world that was started from
            outside only rank 0 has a message, the others end with the same exit code.
    """
    world = launched_world()
    if world is None:
        size = num_ranks(phases)
        return _launch(phases, size) if size > 1 else run_experiment(phases, ALONE)
    try:
        _join(phases, world)
        even = len(set(gather(world, world.local_size))) == 1
        phases = together(world, partial(fit_to_world, phases, world, even=even))
        return run_experiment(phases, world)
    except ConfigError:
        if world.rank:
            raise SystemExit(2) from None
        raise


def num_ranks(phases: list[Phase]) -> int:
    """Processes that the run needs on this machine.

    Raises:
        ConfigError: if phases ask for worlds of different sizes.
    """
    sizes = {size for phase in phases if (size := _num_ranks(phase.config)) > 1}
    if len(sizes) > 1:
        raise ConfigError(
            f"trainer.devices={sorted(sizes)} in different phases of strategy=ddp or fsdp: the "
            f"ranks are started once; allowed: one number"
        )
    return max(sizes, default=1)


def _num_ranks(config: DictConfig) -> int:
    try:
        strategy, chosen = choose_strategy(config)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return num_devices(chosen) if strategy in {"ddp", "fsdp"} else 1


def _launch(phases: list[Phase], size: int) -> float | None:
    config = phases[0].config
    # A forked rank starts in a fraction of a second, a spawned one imports everything anew; but
    # neither CUDA nor a pool of threads survives a fork.
    safe = sys.platform == "linux" and not torch.cuda.is_initialized()
    forkable = safe and config.threads == 1
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
        results = elastic_launch(settings, _rank)(phases, HydraConfig.instance().cfg)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        message = failure.message
        message = str(message["message"] if isinstance(message, dict) else message)
        raise ConfigError(f"rank {rank} of {size} died: {message.splitlines()[-1]}") from None
    except SignalException as error:
        raise SystemExit(128 + error.sigval) from None
    result = results[0]
    if isinstance(result, str):
        raise ConfigError(result)
    return result


def _rank(phases: list[Phase], hydra_config: Any) -> float | str | None:
    """What every launched process runs; an error for the user comes back as its message."""
    HydraConfig.instance().cfg = hydra_config
    setup_globals()
    if not logging.getLogger().handlers:  # a spawned process knows nothing of Hydra's job
        job: Any = HydraConfig.get()
        configure_log(job.job_logging, job.verbose)
    world = launched_world()
    assert world is not None
    try:
        _join(phases, world)
        return run_experiment(phases, world)
    except OneRankError:
        raise
    except ConfigError as error:
        return str(error)
    except RuntimeError:
        # If only the connection to a rank that died is lost, that rank is noticed first.
        time.sleep(1)
        raise


def _join(phases: list[Phase], world: World) -> None:
    """Meet the other ranks; only the first one speaks from now on."""
    rank_zero_only.rank = world.rank  # type: ignore[attr-defined]
    if world.rank:
        logging.getLogger().setLevel(logging.ERROR)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        timeout = max(phase.config.strategy.get("timeout_s", 1800) for phase in phases)
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
