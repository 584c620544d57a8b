"""The command `python -m flfast.train key=value ...`, also installed as `flfast`.

The config is checked before torch and Lightning are imported, which takes seconds.
"""

import os
import sys
import traceback
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from flfast.config.check import check
from flfast.config.command_line import check_overrides
from flfast.config.composition import CONF, VERSION_BASE
from flfast.config.errors import ConfigError
from flfast.config.explain import explain
from flfast.config.job import HydraJob
from flfast.config.phases import compose_phases
from flfast.config.resume_check import check_resume
from flfast.config.run_folder import locked_folder, release_folders


@hydra.main(version_base=VERSION_BASE, config_path=CONF, config_name="config")
def _run(config: DictConfig) -> float | None:
    composed: Any = HydraConfig.instance().cfg  # the only use of Hydra's globals
    job = HydraJob.of(composed)
    config = job.fill(config)
    check(config)
    phases = compose_phases(config, job.compose)
    check_resume(phases[0].config, job.folder)
    from flfast.setup.launch import run  # imports torch

    return run(phases, job)


def main() -> None:
    """Run the command.

    Exit codes: 0 after a finished run, 2 for a wrong setting, 75 for a run stopped on request.
    """
    full_error = os.environ.get("HYDRA_FULL_ERROR")
    # Without this variable, Hydra prints a stripped traceback and exits instead of raising.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
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
    return not any(frame.filename == __file__ and frame.name == "_run" for frame in frames)


if __name__ == "__main__":
    main()
