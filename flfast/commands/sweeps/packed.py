"""Runs the jobs of a sweep side by side, in processes forked from one that has done the imports.

Torch-free at import.
"""

import logging
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.utils import (
    JobReturn,
    JobStatus,
    configure_log,
    filter_overrides,
    run_job,
    setup_globals,
)
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from flfast.commands.sweeps.job_folders import (
    JobConfig,
    compose_job,
    failure_of,
    going_on,
    record_failure,
)
from flfast.commands.sweeps.job_lines import SweepProgress
from flfast.commands.sweeps.live import JobTable
from flfast.commands.sweeps.workers import Slot, slots
from flfast.config.job import typed_overrides
from flfast.distributed.child import begin_child, start_child
from flfast.output.results.outcome import is_locked
from flfast.state.messages import one_line
from flfast.state.output_streams import surviving_output
from flfast.state.stop_requests import EXIT_STOPPED, StoppedError, StopRequests

OUTPUT = "output.log"
"""File in a job's folder: what it would have written to the screen."""

log = logging.getLogger(__name__)
_FORK = multiprocessing.get_context("fork")
_POLL_S = 0.5
_BY_SIGTERM = (-signal.SIGTERM, 128 + signal.SIGTERM)


def run_forked(
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    slot: Slot,
    connection: Connection,
    parent: int,
) -> None:
    """Run a job in this process, which was forked for it, and send its `JobReturn`."""
    begin_child(parent)
    for name in ("SIGTERM", "SIGINT", "SIGUSR1"):  # the sweep's handlers
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    # Ctrl-C reaches all processes of a group. The sweep passes it on, once.
    os.setpgid(0, 0)
    os.environ |= slot
    connection.send_bytes(pickled(run_into_log(context, task, config)))


def run_into_log(context: HydraContext, task: TaskFunction, config: DictConfig) -> JobReturn:
    """Run a job; its output, and all later output of this process, goes into its folder."""
    folder = Path(config.hydra.runtime.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    place = Path(os.devnull) if is_locked(folder) else folder / OUTPUT  # the job will be refused
    output = place.open("a", encoding="utf-8", buffering=1)
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        os.dup2(output.fileno(), number)
    sys.stdout = sys.stderr = output
    with surviving_output():
        return run_job(
            hydra_context=context,
            task_function=task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )


def pickled(result: JobReturn) -> bytes:
    """The result of a job for another process; an error that cannot be pickled is its text."""
    try:
        data = pickle.dumps(result)
        pickle.loads(data)  # some exceptions cannot be made again
        return data
    except Exception:  # noqa: BLE001 - an object of the user's may raise any
        error = failure_of(result)
        if error is not None:
            result.return_value = RuntimeError(one_line(error))
        return pickle.dumps(result)


def launch(
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    initial_job_idx: int,
    *,
    workers: int | str,
) -> list[JobReturn]:
    """Run the jobs of a batch; returns their results in order.

    Raises:
        ConfigError: if `workers` is not valid.
        StoppedError: if the sweep or a job received a stop request.
    """
    jobs = compose_batch(context, config, job_overrides, initial_job_idx)
    try:
        return run_batch(context, task, jobs, workers=workers)
    except StoppedError:
        log.warning(going_on(config))
        raise


def run_batch(
    context: HydraContext, task: TaskFunction, jobs: Sequence[JobConfig], *, workers: int | str
) -> list[JobReturn]:
    """Run composed jobs, as `launch`; returns their results in order."""
    places = slots(workers, [job.config for job in jobs])
    log.info("%d jobs, %d at a time", len(jobs), min(len(places), len(jobs)))
    from flfast.setup.preload import preload  # imports torch, once for all jobs

    preload([job.config for job in jobs])
    results = _Pack(context, task, jobs, places).run()
    return [results[job.num] for job in jobs]


def compose_batch(
    context: HydraContext,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    initial_job_idx: int,
) -> list[JobConfig]:
    """Compose the jobs of a batch, and log their settings."""
    setup_globals()
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    load = context.config_loader.load_sweep_config
    jobs = [
        compose_job(load, config, num, overrides)
        for num, overrides in enumerate(job_overrides, start=initial_job_idx)
    ]
    for job in jobs:
        words = " ".join(filter_overrides(typed_overrides(job.config)))
        log.info("\t#%d : %s", job.num, words)
    return jobs


def job_died(job: JobConfig, reason: str) -> JobReturn:
    """The result of a job whose process died; its folder says so, too."""
    result = JobReturn(status=JobStatus.FAILED)
    result.overrides = typed_overrides(job.config)
    result.return_value = error = RuntimeError(reason)
    record_failure(job.config, error, died=True)
    return result


def show(context: HydraContext, job: JobConfig, result: JobReturn) -> None:
    """Log the line of a job that ended elsewhere."""
    for callback in context.callbacks.callbacks:
        if isinstance(callback, SweepProgress):
            callback.show(job.config, result)


class _Running(NamedTuple):
    """A job that runs in a process, and the slot that it takes."""

    job: JobConfig
    process: Any
    slot: Slot


class _Pack:
    """The jobs of a batch, some of which run, one in each of `places` at a time."""

    def __init__(
        self,
        context: HydraContext,
        task: TaskFunction,
        jobs: Sequence[JobConfig],
        places: Sequence[Slot],
    ) -> None:
        self._context, self._task = context, task
        self._waiting, self._free = list(jobs), list(places)
        self._running: dict[Connection, _Running] = {}
        self._results: dict[int, JobReturn] = {}
        self._table = JobTable(jobs)
        self._stopped = False

    def run(self) -> dict[int, JobReturn]:
        """Run all jobs; returns the results by job number.

        Raises:
            StoppedError: if the sweep or a job received a stop request.
        """
        with _StopJobs(self._running) as requests, self._table.shown():
            while self._waiting or self._running:
                stopping = self._stopped or requests.received is not None
                if stopping and not self._running:
                    break
                while self._waiting and self._free and not stopping:
                    self._start(self._waiting.pop(0), self._free.pop(0))
                for ready in wait(list(self._running), timeout=_POLL_S):
                    self._end(ready, stopping=requests.received is not None)  # type: ignore[arg-type]
                running = {job.num for job, *_ in self._running.values()}
                self._table.update(running | self._results.keys())
        if self._stopped or requests.received is not None:
            raise StoppedError
        return self._results

    def _start(self, job: JobConfig, slot: Slot) -> None:
        ours, theirs = _FORK.Pipe(duplex=False)
        args = (self._context, self._task, job.config, slot, theirs, os.getpid())
        process = _FORK.Process(target=run_forked, args=args, name=f"job-{job.num}")
        start_child(process)
        theirs.close()  # the next job must not inherit it: its end would not be noticed
        self._running[ours] = _Running(job, process, slot)

    def _end(self, connection: Connection, *, stopping: bool) -> None:
        job, process, slot = self._running[connection]
        try:
            result = connection.recv()
        except EOFError:
            result = None
        process.join()
        del self._running[connection]
        connection.close()
        self._free.append(slot)
        # A job that has just begun dies of the signal.
        died = (stopping or self._stopped) and process.exitcode in _BY_SIGTERM
        if result is None and (died or process.exitcode == EXIT_STOPPED):
            self._stopped = True
            for other in self._running.values():
                other.process.terminate()
            return
        if result is None:
            result = job_died(job, f"its process died with code {process.exitcode}")
        self._results[job.num] = result
        with self._table.hidden():
            show(self._context, job, result)


class _StopJobs(StopRequests):
    """`StopRequests` for a sweep: passes the request on to the jobs that run then."""

    def __init__(self, running: dict[Connection, _Running]) -> None:
        super().__init__(second="exit")
        self._running = running

    def on_first(self) -> None:
        """Ask the jobs to stop after their round."""
        super().on_first()
        for running in list(self._running.values()):
            running.process.terminate()

    def on_second(self) -> None:
        """Kill the jobs."""
        for running in list(self._running.values()):
            running.process.kill()
