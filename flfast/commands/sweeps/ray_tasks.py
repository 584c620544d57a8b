"""Runs the jobs of a sweep as tasks of a Ray cluster. Torch-free at import."""

import logging
import os
import pickle
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from flfast.commands.sweeps.job_folders import JobConfig, going_on
from flfast.commands.sweeps.packed import compose_batch, job_died, pickled, run_into_log, show
from flfast.commands.sweeps.workers import cores_of
from flfast.config.errors import ConfigError
from flfast.state.messages import one_line
from flfast.state.stop_requests import StoppedError, StopRequests

log = logging.getLogger(__name__)


def run_task(cwd: str, hydra_state: Any, *job: Any) -> bytes | None:
    """Run a job in a worker of Ray; returns its pickled `JobReturn`, None if it was stopped."""
    os.chdir(cwd)
    Singleton.set_state(hydra_state)
    try:
        result = run_into_log(*job)
    except StoppedError:
        return None
    result.cfg = result.hydra_cfg = None  # Hydra's classes are others in this process
    return pickled(result)


def launch(
    context: HydraContext, task: TaskFunction, config: DictConfig, *batch: Any, gpus: float
) -> list[JobReturn]:
    """Run the jobs of a batch on this machine's cluster; returns their results in order.

    Raises:
        ConfigError: if Ray is not installed.
        ConnectionError: if there is no cluster.
        StoppedError: if the sweep or a job received a stop request.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError("hydra/launcher=ray needs ray: pip install 'flfast[ray]'") from None
    ray.init("auto", ignore_reinit_error=True, log_to_driver=False)
    jobs = compose_batch(context, config, *batch)
    remote = ray.remote(max_calls=1)(run_task)  # a process for each job, as torch is set up once
    variables = {name: value for name, value in os.environ.items() if name.startswith("FLFAST_")}
    waiting: dict[Any, JobConfig] = {}
    for job in jobs:
        run = remote.options(
            num_cpus=cores_of(job.config),
            num_gpus=gpus,
            max_retries=3 if job.config.resume == "auto" else 0,  # of a worker or node that died
            runtime_env={"env_vars": variables},
        )
        state = Singleton.get_state()
        waiting[run.remote(os.getcwd(), state, context, task, job.config)] = job  # noqa: PTH109
    results: dict[int, JobReturn] = {}
    stopped = stopping = False
    with StopRequests(second="exit") as requests:
        while waiting:
            for done in ray.wait(list(waiting), timeout=0.5)[0]:
                job = waiting.pop(done)
                result = _result(ray, done, job)
                if result is not None:
                    results[job.num] = result
                    show(context, job, result)
            stopped = requests.received is not None or len(results) + len(waiting) < len(jobs)
            for run in waiting if stopped and not stopping else ():
                ray.cancel(run)  # SIGINT for a job that runs; a second one would end it at once
            stopping = stopped
    if stopped:
        log.warning(going_on(config))
        raise StoppedError
    return [results[job.num] for job in jobs]


def _result(ray: Any, done: Any, job: JobConfig) -> JobReturn | None:
    """The result of a job that has ended; None if it was stopped."""
    try:
        data = ray.get(done)
    except ray.exceptions.TaskCancelledError:
        return None
    except ray.exceptions.RayError as error:
        return job_died(job, f"its worker died: {one_line(error)}")
    return data and pickle.loads(data)
