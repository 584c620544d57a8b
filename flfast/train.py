"""The command `python -m flfast.train key=value ...`, also installed as `flfast`.

The config is checked before torch and Lightning are imported, which takes seconds.
"""

import logging
import os
import sys
import traceback
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from flfast.checkpoints.signals import StoppedError
from flfast.config.check import check
from flfast.config.command_line import check_overrides
from flfast.config.composition import CONF, VERSION_BASE
from flfast.config.errors import ConfigError
from flfast.config.explain import explain
from flfast.config.job import HydraJob
from flfast.config.launcher import check_environment
from flfast.config.phases import Phase, compose_phases
from flfast.config.resume_check import check_resume
from flfast.config.run_folder import locked_folder, release_folders
from flfast.environment import integer
from flfast.sweeps.finished import GO_ON, finished_result, remove_result, write_result

log = logging.getLogger("flfast.train")  # as `python -m`, too


@hydra.main(version_base=VERSION_BASE, config_path=CONF, config_name="config")
def _run(config: DictConfig) -> float | None:
    composed: Any = HydraConfig.instance().cfg  # the only use of Hydra's globals
    job = HydraJob.of(composed)
    config = job.fill(config)
    check(config)
    phases = compose_phases(config, job.compose)
    if composed.hydra.mode == RunMode.MULTIRUN:
        return _run_job(phases, job, composed.hydra.sweep.dir)
    check_resume(phases[0].config, job.folder)
    return _train(phases, job)


def _run_job(phases: list[Phase], job: HydraJob, sweep_dir: str) -> float | None:
    """Run a job of a sweep, unless a sweep that is resumed has finished it."""
    config, folder = phases[0].config, job.folder
    if config.resume == "auto" and not _shares_world():
        result = finished_result(folder, config)
        if result is not None:
            log.info("%s: finished before", folder)
            return result.value
    check_resume(config, folder, setting=f"hydra.sweep.dir={sweep_dir}")
    remove_result(folder)
    try:
        value = _train(phases, job)
    except StoppedError:
        log.warning(GO_ON, sweep_dir)
        raise
    write_result(folder, config, value)
    return value


def _train(phases: list[Phase], job: HydraJob) -> float | None:
    from flfast.setup.launch import run  # imports torch

    return run(phases, job)


def _shares_world() -> bool:
    """Whether torchrun or srun started other ranks, which do not see that a job has finished."""
    return any(integer(name, 1) > 1 for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"))


def main() -> None:
    """Run the command.

    Exit codes: 0 after a finished run, 2 for a wrong setting, 75 for a run stopped on request.
    """
    full_error = os.environ.get("HYDRA_FULL_ERROR")
    # Without this variable, Hydra prints a stripped traceback and exits instead of raising.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        check_environment()
        check_overrides(sys.argv[1:], conf=CONF)
        _run()
    except Exception as error:
        expected = isinstance(
            error, (ConfigError, HydraException, OmegaConfBaseException, OSError)
        )
        if full_error == "1" or not (expected or _while_composing(error)):
            raise
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = locked_folder()
        sys.exit(explain(error, conf=CONF))
    finally:
        release_folders()
        os.environ["HYDRA_FULL_ERROR"] = full_error or "0"


def _while_composing(error: Exception) -> bool:
    """Whether Hydra failed while composing: its assertions can fail on the user's overrides."""
    frames = traceback.extract_tb(error.__traceback__)
    of_a_run = any(frame.filename == __file__ and frame.name == "_run" for frame in frames)
    # Hydra raises the error of a sweep's job here; the job may have been in another process.
    return not of_a_run and not any(frame.name == "return_value" for frame in frames)


if __name__ == "__main__":
    main()
