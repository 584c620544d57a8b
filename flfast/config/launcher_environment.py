"""Checks what torchrun or srun says about this process in its environment. Torch-free."""

import os

from flfast.config.errors import ConfigError
from flfast.state.environment import LEAST, integer


def check_environment() -> None:
    """Refuse an environment from which the world of ranks cannot be read.

    Raises:
        ConfigError: naming a variable, its value and what is allowed.
    """
    try:
        values = {name: integer(name, 1) for name in LEAST if name in os.environ}
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not {"RANK", "WORLD_SIZE"} <= values.keys():
        return
    for name, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if {name, size} <= values.keys() and values[name] >= values[size]:
            raise ConfigError(
                f"environment variable {name}={values[name]} with {size}={values[size]}: must be "
                f"less than {size}"
            )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"environment variable {missing[0]} is missing, and RANK={values['RANK']} "
            f"WORLD_SIZE={values['WORLD_SIZE']} say that a launcher started this process; set it, "
            f"as torchrun does, or unset RANK"
        )
