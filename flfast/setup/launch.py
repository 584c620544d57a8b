"""Starting the ranks of a run: TorchElastic, inside of Hydra's job, or a world that is there."""

import datetime
import logging
import signal
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log, setup_globals
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from flfast.checkpoints.signals import StoppedError, StopRanks, StopRequests
from flfast.config.errors import ConfigError, OneRankError
from flfast.config.phases import Phase
from flfast.distributed.devices import num_devices
from flfast.distributed.elastic import first_failure, on_ranks
from flfast.distributed.world import ALONE, World, gather, launched_world, num_restarts
from flfast.setup.build import choose_strategy
from flfast.setup.experiment import on_all_ranks, run_experiment
from flfast.setup.external_world import fit_to_world

log = logging.getLogger(__name__)

STOP, REFUSAL = "stop", "refusal"
"""Names of notes: that somebody asked for an end, and why the run cannot be."""


def run(phases: list[Phase]) -> float | None:
    """Run a checked config in as many processes as its strategies ask for, started once.

    Args:
        phases: of the run, composed and checked.

    Returns:
        `optimized_metric` after the last round.

    Raises:
        ConfigError: if a setting cannot be run, or ranks die too often; of a world that was
            started from outside only rank 0 has a message, the others end with the same exit code.
        StoppedError: if the run was told to stop.
    """
    world = launched_world()
    if world is None:
        size = num_ranks(phases)
        if size > 1:
            return _launch(phases, size)
        with StopRequests(alone=True) as requests:
            return run_experiment(phases, ALONE, requests)
    try:
        _join(phases, world)
        even = len(set(gather(world, world.local_size))) == 1
        phases = on_all_ranks(world, partial(fit_to_world, phases, world, even=even))
        with StopRequests(alone=world.size == 1) as requests:
            return run_experiment(phases, world, requests)
    except ConfigError as error:
        if world.rank:
            if isinstance(error, OneRankError):  # the others do not know
                sys.stderr.write(f"rank {world.rank}: {error}\n")
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


class _Outcome(NamedTuple):
    """How a rank ended.

    Attributes:
        value: `optimized_metric` after the last round.
        refused: the message of an error for the user.
        stopped: whether the run was told to stop.
    """

    value: float | None = None
    refused: str | None = None
    stopped: bool = False


def _launch(phases: list[Phase], size: int) -> float | None:
    torch.set_num_threads(phases[0].config.threads)
    notes = TemporaryDirectory(prefix="flfast-")
    with notes as folder, StopRanks(Path(folder) / STOP) as requests:
        args = phases, HydraConfig.instance().cfg, Path(folder)
        restarts = max(phase.config.strategy.get("max_restarts", 0) for phase in phases)
        try:
            results = on_ranks(size, _rank, *args, max_restarts=restarts)
        except ChildFailedError as error:
            if requests.asked:  # whoever asked told the ranks, too, which died of it
                raise StoppedError from None
            raise ConfigError(first_failure(error, size)) from None
        except SignalException as error:
            raise SystemExit(128 + error.sigval) from None
    outcome: _Outcome = results[0]
    if outcome.refused is not None:
        raise ConfigError(outcome.refused)
    if outcome.stopped:
        raise StoppedError
    return outcome.value


def _rank(phases: list[Phase], hydra_config: Any, notes: Path) -> _Outcome:
    """What every launched process runs.

    Args:
        phases: of the run.
        hydra_config: of the job.
        notes: folder in which all processes of the launch leave word.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the launcher has it, too
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another rank has died
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # a fork has the launcher's handler
    with StopRequests(alone=False, names=["SIGUSR1"]) as requests:
        if (notes / REFUSAL).exists():  # an error that would come again
            return _Outcome(refused=(notes / REFUSAL).read_text(encoding="utf-8"))
        HydraConfig.instance().cfg = hydra_config
        setup_globals()
        if not logging.getLogger().handlers:  # a spawned process knows nothing of Hydra's job
            job: Any = HydraConfig.get()
            configure_log(job.job_logging, job.verbose)
        world = launched_world()
        assert world is not None
        try:
            _join(phases, world)
            _stop_if_told(world, requests, notes)
            return _Outcome(run_experiment(phases, world, requests))
        except StoppedError:
            return _Outcome(stopped=True)
        except OneRankError as error:
            (notes / REFUSAL).write_text(str(error), encoding="utf-8")
            raise
        except ConfigError as error:
            return _Outcome(refused=str(error))
        except RuntimeError:
            # If only the connection to a rank that died is lost, that rank is noticed first.
            time.sleep(1)
            raise
        except Exception as error:
            text = f"rank {world.rank} of {world.size} died: {type(error).__name__}: {error}"
            (notes / REFUSAL).write_text(text, encoding="utf-8")
            raise


def _stop_if_told(world: World, requests: StopRequests, notes: Path) -> None:
    """End before there is anything to lose; collective.

    One that went by the note alone would be waited for by those that started before it was there.

    Raises:
        StoppedError: on every rank, if any knows that somebody asked for an end.
    """
    if any(gather(world, requests.asked is not None or (notes / STOP).exists())):
        raise StoppedError


def _join(phases: list[Phase], world: World) -> None:
    """Meet the other ranks; only the first one speaks from now on."""
    rank_zero_only.rank = world.rank  # type: ignore[attr-defined]
    if world.rank:
        logging.getLogger().setLevel(logging.ERROR)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        timeout = max(phase.config.strategy.get("timeout_s", 1800) for phase in phases)
        limit = datetime.timedelta(seconds=timeout)
        # TorchElastic's store outlives a restart, and with it the addresses of ranks that died.
        store, rank, size = next(dist.rendezvous("env://", timeout=limit))
        own = dist.PrefixStore(f"attempt-{num_restarts()}", store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=limit)
