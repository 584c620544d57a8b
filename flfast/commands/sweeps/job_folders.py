"""The folders of a sweep's jobs: refused before the first job, marked after one. Torch-free."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from flfast.commands.sweeps.workers import launcher_overrides
from flfast.config.composition import sources_of
from flfast.config.decision import decision, recorded_config
from flfast.config.errors import ConfigError
from flfast.config.explain import explain
from flfast.config.job import HydraJob, typed_overrides
from flfast.config.run_folder import is_held
from flfast.output.results.outcome import Result, holds_run, read_result, write_result
from flfast.state.messages import one_line
from flfast.state.real_folder import literal, real_folder


class JobFolders(Callback):
    """Hydra's callback that checks the folders of a sweep's jobs, and marks those that failed."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Refuse the sweep before Hydra writes into its folder."""
        try:
            check_jobs(config)
        except (ConfigError, HydraException, OmegaConfBaseException) as error:
            # Hydra turns exceptions of callbacks into warnings, except this one.
            sys.exit(explain(error))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Record why a job failed before its run was accepted; the run itself cannot."""
        error = failure_of(job_return) if config.hydra.mode == RunMode.MULTIRUN else None
        # A busy folder is another run's.
        if error is not None and is_held(config.hydra.runtime.output_dir):
            record_failure(config, error)


def failure_of(result: JobReturn) -> BaseException | None:
    """What ended a job; None if it went through."""
    error: BaseException = result._return_value  # noqa: SLF001 - return_value raises it
    return error if result.status == JobStatus.FAILED else None


def going_on(config: DictConfig) -> str:
    """The line of a sweep that is stopped."""
    setting = shlex.quote(f"hydra.sweep.dir={real_folder(config.hydra.sweep.dir)}")
    return f"to go on with the sweep, repeat the command with: resume=auto {setting}"


class JobConfig(NamedTuple):
    """Number, config (with the node `hydra`) and folder of a job of a sweep, before it runs."""

    num: int
    config: DictConfig
    folder: Path


def compose_job(
    load: Callable[[DictConfig, list[str]], DictConfig],
    sweep: DictConfig,
    num: int,
    overrides: Sequence[str],
) -> JobConfig:
    """A job of a sweep, as its launcher runs it; `load` is Hydra's `load_sweep_config`.

    Raises:
        HydraException: if an override names no key or no option.
    """
    composed = load(sweep, list(overrides))
    extra = launcher_overrides(composed)
    if extra:
        composed = load(sweep, [*overrides, *extra])
    with open_dict(composed):
        composed.hydra.job.id = composed.hydra.job.num = num
        place = Path(composed.hydra.sweep.dir, str(composed.hydra.sweep.subdir))
        folder = real_folder(os.path.abspath(place))  # noqa: PTH100 - as Hydra's `run_job`
        composed.hydra.runtime.output_dir = literal(folder)
    return JobConfig(num, composed, folder)


def check_jobs(sweep: DictConfig) -> None:
    """Refuse a sweep in whose folder a job may not run, before Hydra writes there.

    Jobs that only the sweeper knows, those of a search, are checked one by one as they start.

    Raises:
        ConfigError: if the folder of a job holds a run that must not be lost.
        HydraException: if the config of a job cannot be composed.
    """
    loader = ConfigLoaderImpl(sources_of(sweep))
    setting = f"hydra.sweep.dir={sweep.hydra.sweep.dir}"
    parsed = parsed_overrides(sweep)
    for num, overrides in enumerate(overrides_by_job(sweep, parsed) or ()):
        job = compose_job(loader.load_sweep_config, sweep, num, overrides)
        if holds_run(job.folder):
            try:
                _check_job(job, setting)
            except ConfigError as error:
                raise type(error)(f"job {num}: {error}") from None


def parsed_overrides(sweep: DictConfig) -> list[Override]:
    """What the command line and the sweeper's config set."""
    params = (sweep.hydra.sweeper.get("params") or {}).items()
    parser = OverridesParser.create(config_loader=ConfigLoaderImpl(sources_of(sweep)))
    words = [f"{key}={value}" for key, value in params]
    return parser.parse_overrides([*words, *typed_overrides(sweep)])


def overrides_by_job(sweep: DictConfig, parsed: list[Override]) -> list[list[str]] | None:
    """Overrides of each job; None if only the sweeper knows them."""
    known = sweep.hydra.sweeper["_target_"].endswith(f".{BasicSweeper.__name__}")
    return BasicSweeper.split_arguments(parsed, None)[0] if known else None


def _check_job(job: JobConfig, setting: str) -> None:
    phases = HydraJob.of(job.config).phases()
    decision(phases[0].config, job.folder, setting=setting)


def record_failure(config: DictConfig, error: BaseException, *, died: bool = False) -> None:
    """Say in the folder of a sweep's job that it failed, unless the folder holds another run.

    A process that `died` could not say so itself.
    """
    job = HydraJob.of(config)
    said: Result | None = read_result(job.folder)
    if died and said is not None and said.outcome == "running":
        write_result(job.folder, said._replace(outcome="failed", error=one_line(error)))
    elif not holds_run(job.folder):
        plain: Any = recorded_config(job.fill(job.given), job.folder)
        job.folder.mkdir(parents=True, exist_ok=True)
        with job.new_settings():
            write_result(job.folder, Result("failed", plain, error=one_line(error)))
