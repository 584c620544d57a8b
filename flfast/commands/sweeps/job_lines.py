"""A line for every job of a sweep that ends: its result, and how much is left. Torch-free."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from flfast.commands.sweeps.job_folders import failure_of, overrides_by_job, parsed_overrides
from flfast.config.errors import ConfigError
from flfast.output.results.formats import readable, value
from flfast.output.results.history import last_value
from flfast.output.results.outcome import RESULT, outcome
from flfast.output.results.runs import read_run
from flfast.state.messages import one_line

log = logging.getLogger(__name__)


class SweepProgress(Callback):
    """Hydra's callback that logs a line after each job.

    It counts files, because a launcher may run jobs in other processes.
    """

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Note when the sweep starts, how many jobs it has, and what differs between them."""
        self._started, (self._keys, self._num_jobs) = time.time(), read_space(config)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Log the line of a job; a single run has none."""
        if config.hydra.mode != RunMode.MULTIRUN:
            return
        self.show(config, job_return)
        error = failure_of(job_return)
        if error is not None and not isinstance(error, (ConfigError, OSError)):
            log.error("traceback of job %s:", config.hydra.job.num, exc_info=error)

    def show(self, config: DictConfig, job_return: JobReturn) -> None:
        """Log the line of a job of the sweep."""
        folder = Path(config.hydra.runtime.output_dir)
        rest = self._rest(Path(config.hydra.sweep.dir))
        error = failure_of(job_return)
        if error is not None:
            log.error("job %s failed: %s%s", config.hydra.job.num, one_line(error), rest)
        else:
            result = shown_result(folder, self._keys)
            log.info("job %s is done: %s%s", config.hydra.job.num, result, rest)

    def _rest(self, sweep_dir: Path) -> str:
        """How many jobs are left, and for how long."""
        total = self._num_jobs
        if total is None:
            return ""
        ended: dict[str, list[float]] = {"finished": [], "failed": []}
        for path in sweep_dir.rglob(RESULT):
            ended.get(outcome(path.parent), []).append(path.stat().st_mtime)
        # A failure of an earlier start is of a job that will run again.
        times = [*ended["finished"], *(t for t in ended["failed"] if t >= self._started)]
        now = sum(when >= self._started for when in times)
        left = max(total - len(times), 0)
        seconds = left * (time.time() - self._started) / max(now, 1)
        text = f", {left} of {total} jobs left"
        return f"{text}, about {readable(seconds)}" if left and now else text


def shown_result(folder: Path, keys: Sequence[str]) -> str:
    """The values of some overrides of a job and its optimized metric, for people."""
    try:
        job = read_run(folder)
    except (OSError, ValueError):
        return "no numbers"
    settings = [f"{key}={job.overrides[key]}" for key in keys if key in job.overrides]
    found = value(job.optimized, last_value(job.history, job.optimized))
    metric = [f"{job.optimized} {found}"] * (found != "-")
    return ", ".join([*[" ".join(settings)] * bool(settings), *metric]) or "no numbers"


def read_space(config: DictConfig) -> tuple[list[str], int | None]:
    """The settings that a sweep varies, and its number of jobs; None if only the sweeper knows."""
    parsed = parsed_overrides(config)
    swept = [item.get_key_element().lstrip("+") for item in parsed if item.is_sweep_override()]
    if "n_trials" in config.hydra.sweeper:
        return swept, int(config.hydra.sweeper.n_trials)
    jobs = overrides_by_job(config, parsed)
    return swept, None if jobs is None else len(jobs)
