"""Starts the ranks of a run, or joins a world that is already running."""

import logging
import pickle
import signal
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
import torch.distributed as dist
from hydra.core.utils import configure_log, setup_globals
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig

from flfast.config.errors import ConfigError, OneRankError, refused
from flfast.config.job import HydraJob
from flfast.config.own import Own
from flfast.config.phases import Phase
from flfast.config.rules import cannot_start
from flfast.distributed.devices import num_devices
from flfast.distributed.launcher import RankDiedError, can_fork, on_ranks, other_threads
from flfast.distributed.process_group import enter
from flfast.distributed.world import ALONE, World, gather, launched_world
from flfast.setup.all_ranks import on_all_ranks
from flfast.setup.external_world import fit_to_threads, fit_to_world
from flfast.setup.plans import choose_strategy
from flfast.setup.start import Change, run_experiment
from flfast.state.messages import first_line
from flfast.state.regular_file import replacing
from flfast.state.stop_requests import (
    Second,
    StoppedAtEndError,
    StoppedError,
    StopRanks,
    StopRequests,
)

log = logging.getLogger(__name__)

STOP, REFUSAL = "stop", "refusal"
"""Names of note files: a stop was requested; why the run is refused."""

_SPAWNABLE = (
    "allowed: functions and classes of a module of your own; trainer.devices=1; or threads=1, no "
    "CUDA and no other thread before the run, since ranks are then forked"
)


def run(
    phases: list[Phase],
    job: HydraJob,
    *,
    second: Second = "exit",
    change: Change | None = None,
) -> float | None:
    """Run a checked config in as many processes as its strategies need.

    Returns `optimized_metric` after the last round. The first stop signal ends the run after its
    round; `second` is the effect of another one. `change` may change the federation before its
    first round, in a run of one process.

    Raises:
        ConfigError: if a setting cannot be run, or ranks die too often. In a world that torchrun
            or SLURM started, only rank 0 raises it; other ranks exit with the same code.
        StoppedError: if the run received a stop request.
        StoppedAtEndError: if it did in its last round, and finished.
    """
    world = launched_world()
    if world is None:
        phases = fit_to_threads(phases, other_threads())
        size = num_ranks(phases)
        if size > 1:
            return _launch(phases, job, size, second)
        with StopRequests(second=second) as requests:
            value = run_experiment(phases, job, ALONE, requests, change=change)
            return _finished(value, requests)
    try:
        _join_world(phases, world)
        equal_nodes = len(set(gather(world, world.local_size))) == 1
        fit = partial(fit_to_world, phases, world, equal_nodes=equal_nodes)
        phases = on_all_ranks(world, fit)
        with StopRequests(second=second if world.size == 1 else "ignore") as requests:
            return run_experiment(phases, job, world, requests)
    except ConfigError as error:
        if world.rank:
            if isinstance(error, OneRankError):  # rank 0 does not have this message
                sys.stderr.write(f"rank {world.rank}: {error}\n")
            raise SystemExit(2) from None
        raise


def num_ranks(phases: list[Phase]) -> int:
    """Number of processes that the run needs on this machine.

    Raises:
        ConfigError: if phases need different numbers of ranks, or this process cannot start any.
    """
    sizes = {size for phase in phases if (size := _num_ranks(phase.config)) > 1}
    setting = f"trainer.devices={max(sizes, default=1)}"
    if sizes and (problem := cannot_start(setting, allowed="trainer.devices=1")):
        raise ConfigError(problem)
    if len(sizes) > 1:
        raise ConfigError(
            f"trainer.devices={sorted(sizes)} in different phases of strategy=ddp or fsdp: the "
            f"ranks are started once; allowed: one number"
        )
    return max(sizes, default=1)


def _num_ranks(config: DictConfig) -> int:
    with refused():
        strategy, chosen = choose_strategy(config)
    return num_devices(chosen) if strategy in {"ddp", "fsdp"} else 1


class _Outcome(NamedTuple):
    """How a rank ended: with a value, with the message of a `ConfigError`, or stopped."""

    value: float | None = None
    refused: str | None = None
    stopped: bool = False


def _launch(phases: list[Phase], job: HydraJob, size: int, second: Second) -> float | None:
    torch.set_num_threads(phases[0].config.threads)
    if not can_fork():
        check_spawnable(job.objects)
    notes = TemporaryDirectory(prefix="flfast-")
    with notes as folder, StopRanks(Path(folder) / STOP, second=second) as requests:
        args = phases, job, Path(folder)
        restarts = max(phase.config.strategy.get("max_restarts", 0) for phase in phases)
        try:
            results = on_ranks(size, _run_rank, *args, max_restarts=restarts)
        except RankDiedError as error:
            if requests.received:  # the ranks got the same signal and died of it
                raise StoppedError from None
            raise ConfigError(str(error)) from None
        outcome: _Outcome = results[0]
        if outcome.refused is not None:
            raise ConfigError(outcome.refused)
        if outcome.stopped:
            raise StoppedError
        return _finished(outcome.value, requests)


def _finished(value: float | None, requests: StopRequests) -> float | None:
    """The value of a run that has finished; a stop request that came too late ends a sweep."""
    if requests.received is not None:
        raise StoppedAtEndError(value)
    return value


def _run_rank(phases: list[Phase], job: HydraJob, notes: Path) -> _Outcome:
    """Run a rank of the launched world; it shares the folder of notes with launcher and ranks."""
    # A terminal sends SIGINT to the launcher, too, which passes the request on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A forked process inherits the launcher's handlers.
    for name in ("SIGTERM", "SIGUSR1"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    # Never left: a request that comes once the run has finished must not kill the rank.
    requests = StopRequests(second="ignore", names=["SIGUSR1"]).__enter__()
    if (notes / REFUSAL).exists():  # after a restart: the same error would occur again
        return _Outcome(refused=(notes / REFUSAL).read_text(encoding="utf-8"))
    _configure(job)
    world = launched_world()
    assert world is not None
    try:
        _join_world(phases, world)
        _stop_if_requested(world, requests, notes)
        return _Outcome(run_experiment(phases, job, world, requests))
    except StoppedError:
        return _Outcome(stopped=True)
    except OneRankError as error:
        _note_refusal(notes, str(error))
        raise
    except ConfigError as error:
        return _Outcome(refused=str(error))
    except RuntimeError:
        # Often only the connection to a dead rank: let the launcher notice that rank first.
        time.sleep(1)
        raise
    except Exception as error:
        text = f"rank {world.rank} of {world.size} died: {type(error).__name__}: {error}"
        _note_refusal(notes, text)
        raise


def _note_refusal(notes: Path, text: str) -> None:
    """Note it whole or not at all: once another rank has died, this one is killed at any time."""
    with replacing(notes) as place:
        (place / REFUSAL).write_text(text, encoding="utf-8")


def _configure(job: HydraJob) -> None:
    """Give a spawned process the resolvers of configs, and the job's logging."""
    setup_globals()
    if not logging.getLogger().handlers:
        configure_log(job.hydra.hydra.job_logging, job.hydra.hydra.verbose)


def _stop_if_requested(world: World, requests: StopRequests, notes: Path) -> None:
    """Stop all ranks if one was asked to during start-up; one alone would make others hang."""
    if any(gather(world, requests.received is not None or (notes / STOP).exists())):
        raise StoppedError


def _join_world(phases: list[Phase], world: World) -> None:
    """Initialise the process group; ranks other than 0 log errors only from now on."""
    rank_zero_only.rank = world.rank  # type: ignore[attr-defined]
    if world.rank:
        logging.getLogger().setLevel(logging.ERROR)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        limit = max(phase.config.strategy.get("timeout_s", 1800) for phase in phases)
        enter(backend, timeout_s=limit)


def check_spawnable(objects: Own) -> None:
    """Refuse objects that another process cannot load.

    Raises:
        ConfigError: naming the object and the reason; also if the program itself is no file.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is not None and not Path(script).is_file():
        raise ConfigError(
            f"{script} is no file, and ranks that are spawned import the program; {_SPAWNABLE}"
        )
    for key, value in objects.given().items():
        where = f"{key}={objects.nodes[key]['_target_']}"
        try:
            content = pickle.dumps(value)
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise ConfigError(
                f"{where}: cannot be pickled for ranks that are spawned: {reason}; {_SPAWNABLE}"
            ) from error
        if b"__main__" in content and script is None:
            raise ConfigError(
                f"{where}: is defined in a notebook or a console, which ranks that are spawned "
                f"cannot import; {_SPAWNABLE}"
            )
