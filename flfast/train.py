"""The command `python -m flfast.train key=value ...`, also installed as `flfast`.

The config is checked before torch and Lightning are imported, which takes seconds.
"""

import logging
import os
import re
import sys
import traceback
from functools import partial
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from flfast.commands.sweeps.job_folders import going_on
from flfast.config.command_line import at_home, check_environment, check_overrides, without_dashes
from flfast.config.composition import CONF, VERSION_BASE
from flfast.config.decision import decision
from flfast.config.errors import ConfigError
from flfast.config.explain import explain
from flfast.config.implied import implied
from flfast.config.job import HydraJob
from flfast.config.phases import Phase
from flfast.config.run_folder import lock_job, locked_folder, recorded, release_folders
from flfast.state.environment import integer
from flfast.state.output_streams import surviving_output
from flfast.state.real_folder import real_folder
from flfast.state.stop_requests import StoppedAtEndError, StoppedError
from flfast.state.version import __version__

log = logging.getLogger("flfast.train")  # as `python -m`, too


@hydra.main(version_base=VERSION_BASE, config_path=CONF, config_name="config")
def run_job(config: DictConfig) -> float | None:
    """Train with a composed config, inside of Hydra; returns the result for its sweepers."""
    composed: Any = HydraConfig.instance().cfg  # the only use of Hydra's globals
    lock_job(composed)
    job = HydraJob.of(composed, config)
    phases = job.phases()
    multirun = composed.hydra.mode == RunMode.MULTIRUN
    place = f"hydra.sweep.dir={real_folder(composed.hydra.sweep.dir)}" if multirun else None
    # Other ranks, of torchrun or srun, have to hear that the run finished.
    shares_world = any(integer(name, 1) > 1 for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"))
    decided = decision(phases[0].config, job.folder, setting=place)
    if decided.becomes == "unchanged" and not shares_world:
        log.info("%s: finished before", job.folder)
        return decided.value
    try:
        return recorded(job.folder, partial(_train, phases, job))
    except StoppedError as stop:
        if multirun:
            log.warning(going_on(composed))
        elif isinstance(stop, StoppedAtEndError):
            return stop.value
        raise


def _train(phases: list[Phase], job: HydraJob) -> float | None:
    from flfast.setup.launch import run  # imports torch

    return run(phases, job)


@surviving_output()
def main() -> None:
    """Run the command.

    Exit codes: 0 after a finished run, 2 for a wrong setting, 73 if another process writes into
    the folder, 75 for a run stopped on request.
    """
    if "--version" in sys.argv[1:]:  # Hydra would answer with its own
        print(f"flfast {__version__}")  # noqa: T201
        return
    full_error = os.environ.get("HYDRA_FULL_ERROR")
    # Without this variable, Hydra prints a stripped traceback and exits instead of raising.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        check_environment()
        sys.argv[1:] = map(at_home, without_dashes(sys.argv[1:]))
        check_overrides(sys.argv[1:])
        typed = [place for place, word in enumerate(sys.argv, 1) if re.match(r"[^-].*=", word)]
        place = max(typed, default=1)  # argparse wants all overrides in one row
        sys.argv[place:place] = implied(sys.argv[1:])
        run_job()
    except Exception as error:
        expected = isinstance(
            error, (ConfigError, HydraException, OmegaConfBaseException, OSError)
        )
        if full_error == "1" or not (expected or _while_composing(error)):
            raise
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = locked_folder()
        sys.exit(explain(error))
    finally:
        release_folders()
        os.environ["HYDRA_FULL_ERROR"] = full_error or "0"


def _while_composing(error: Exception) -> bool:
    """Whether Hydra failed while composing: its assertions can fail on the user's overrides."""
    frames = traceback.extract_tb(error.__traceback__)
    of_a_run = any(frame.filename == __file__ and frame.name == "run_job" for frame in frames)
    # Hydra raises the error of a sweep's job here; the job may have been in another process.
    return not of_a_run and not any(frame.name == "return_value" for frame in frames)


if __name__ == "__main__":
    main()
