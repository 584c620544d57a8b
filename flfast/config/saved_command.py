"""What the commands about saved runs have in common. Torch-free."""

import logging
import os
import sys
from collections.abc import Callable

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from flfast.config.composition import CONF
from flfast.config.errors import ConfigError
from flfast.config.explain import explain
from flfast.state.output_streams import surviving_output


@surviving_output()
def run_command(name: str, usage: str, work: Callable[[list[str]], None]) -> None:
    """Run a command with the words of the command line; exit code 2 for a wrong setting.

    Args:
        name: of the module.
        usage: printed for `--help`, or without words.
        work: what the command does with its words.
    """
    words = sys.argv[1:]
    if not words or {"--help", "-h"} & set(words):
        sys.stdout.write(usage)
        return
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        work(words)
    except (ConfigError, HydraException, OmegaConfBaseException, OSError) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        hint = f"All options: python -m {name} --help."
        sys.exit(explain(error, conf=CONF, hint=hint))
