"""The command: `python -m flfast.train key=value ...`, also installed as `flfast`.

Torch-free until the config is known to be good: importing torch and Lightning costs seconds.
"""

import os
import sys
import traceback
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from flfast.config.check import check
from flfast.config.command_line import check_words
from flfast.config.errors import ConfigError
from flfast.config.explain import explain
from flfast.config.phases import compose_phases
from flfast.config.resume_check import check_resume

_INSTALLED = Path(__file__).parent / "conf"
CONF = str(_INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[1] / "conf")


@hydra.main(version_base="1.3", config_path=CONF, config_name="config")
def _run(config: DictConfig) -> float | None:
    check(config)
    phases = compose_phases(config)
    check_resume(phases[0].config, Path(HydraConfig.get().runtime.output_dir))
    from flfast.setup.launch import run  # imports torch

    return run(phases)


def main() -> None:
    """Run; a wrong setting ends in one clear error and exit code 2, a run told to stop in 75."""
    wanted = os.environ.get("HYDRA_FULL_ERROR")
    # Hydra would print a stripped traceback and exit; its errors should come here as they are.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        check_words(sys.argv[1:], conf=CONF)
        _run()
    except Exception as error:
        told = isinstance(error, (ConfigError, HydraException, OmegaConfBaseException, OSError))
        if wanted == "1" or not (told or _while_composing(error)):
            raise
        sys.exit(explain(error, conf=CONF))
    finally:
        os.environ["HYDRA_FULL_ERROR"] = wanted or "0"


def _while_composing(error: Exception) -> bool:
    """Whether Hydra failed before it called us: its assertions meet what a user typed."""
    frames = traceback.extract_tb(error.__traceback__)
    return not any(frame.filename == __file__ and frame.name == "_run" for frame in frames)


if __name__ == "__main__":
    main()
